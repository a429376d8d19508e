// Which replica a request goes to.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace lapidary::fleet {

// `loads`: open requests of every replica, of which there is at least one.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual int Choose(std::span<const int32_t> prompt, std::span<const int> loads) = 0;
};

// One after the other.
class RoundRobin : public Policy {
 public:
  int Choose(std::span<const int32_t> prompt, std::span<const int> loads) override;

 private:
  size_t next_ = 0;
};

// The one with the fewest open requests; among equals a random one.
class LeastLoad : public Policy {
 public:
  int Choose(std::span<const int32_t> prompt, std::span<const int> loads) override;

 private:
  std::mt19937_64 random_{1};
};

// The one that was sent the longest prefix of the prompt, and of those the one with the fewest open
// requests, unless that is far above the mean: then the one with the fewest of all. Knows what was
// sent where and not what was evicted there, as routers do that see no cache events.
class PrefixAware : public Policy {
 public:
  int Choose(std::span<const int32_t> prompt, std::span<const int> loads) override;

 private:
  static constexpr int kBlockTokens = 64;
  // Open requests above the mean, and times it, that a prefix is worth.
  static constexpr double kMostAbove = 4.0;
  static constexpr double kMostTimes = 1.25;

  LeastLoad least_load_;
  // By the hash of a prefix that ends at a block's end.
  std::unordered_map<uint64_t, std::vector<int32_t>> replicas_;
};

std::vector<std::string> PolicyNames();
// "round-robin", "least-load", "prefix".
Result<std::unique_ptr<Policy>> MakePolicy(std::string_view name);

}  // namespace lapidary::fleet
