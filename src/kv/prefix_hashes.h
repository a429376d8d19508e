// What makes a prefix the same as another: its tokens, the media its placeholder tokens stand for,
// the adapter it was computed with, and who may share it. Hashed once per sequence, at every
// length.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace lapidary {

// 128 bits over a prefix, seeded per process so that nobody can construct a collision.
struct PrefixHash {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const PrefixHash&) const = default;
};

// An image, a sound, a video: 128 bits of a digest over what the model sees of it.
struct MediaDigest {
  int32_t position = 0;  // of its first placeholder token
  uint64_t low = 0;
  uint64_t high = 0;
  // Not hashed, for those who are told of cached blocks.
  int32_t num_tokens = 1;  // placeholder tokens
  bool is_whole = false;   // no prompt resumes inside it

  int32_t end() const { return position + num_tokens; }
};

class PrefixHasher {
 public:
  explicit PrefixHasher(uint64_t seed) : state_{Mix(seed), Mix(~seed)} {}
  // Continues a prefix of this hash.
  explicit PrefixHasher(const PrefixHash& prefix) : state_(prefix) {}
  void Add(int32_t token) {
    state_.low = Mix(state_.low ^ (static_cast<uint32_t>(token) + 0x9e3779b97f4a7c15u));
    state_.high = Mix(state_.high + (uint64_t{static_cast<uint32_t>(token)} << 32 | 0x85ebca6bu));
  }
  // For what is no token: announce it with one that no vocabulary has.
  void AddWord(uint64_t word) {
    state_.low = Mix(state_.low ^ word);
    state_.high = Mix(state_.high + word);
  }
  // Before its first token.
  void Add(const MediaDigest& medium);
  const PrefixHash& hash() const { return state_; }

 private:
  static uint64_t Mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  PrefixHash state_;
};

// What a prompt is beside its tokens. Two prompts share a prefix only where all of it agrees.
struct PrefixIdentity {
  uint64_t adapter = 0;   // 0: the model as it is
  std::string salt = {};  // shared only with those that give the same; empty: with all
  std::vector<MediaDigest> media = {};  // by position, ascending
};

// An error unless each medium starts at a token of its own, in order.
Status CheckIdentity(const PrefixIdentity& identity, int64_t prompt_len);

// The hashes of all prefixes of one token sequence, each token hashed once as it becomes known. 16
// bytes per token: 2 MiB for a context of 128k, next to gigabytes of its keys and values.
class PrefixHashes {
 public:
  PrefixHashes(uint64_t seed, const PrefixIdentity& identity);

  // Hashes what is new in `tokens`, which goes on where the last call ended; returns how many.
  int32_t Extend(std::span<const int32_t> tokens);

  int32_t length() const { return static_cast<int32_t>(hashes_.size()); }
  // Of the first `length` tokens, 0 <= length <= this->length().
  const PrefixHash& Of(int32_t length) const { return length > 0 ? hashes_[length - 1] : empty_; }
  const PrefixIdentity& identity() const { return identity_; }

 private:
  PrefixHasher hasher_;
  PrefixHash empty_;  // of no tokens: of adapter and salt alone
  PrefixIdentity identity_;
  size_t num_media_hashed_ = 0;
  std::vector<PrefixHash> hashes_;
};

}  // namespace lapidary
