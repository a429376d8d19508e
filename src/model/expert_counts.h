// How many rows chose each expert of each layer since the start. An executor counts, metrics read;
// padding is not counted.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace lapidary {

// Every method but Resize may be called from many threads at once.
class ExpertCounts {
 public:
  // By the executor, before it runs its first step; all are 0 then.
  void Resize(int num_layers, int num_experts) {
    CHECK_GE(num_layers, 0);
    num_layers_ = num_layers;
    num_experts_ = num_experts;
    counts_ = std::vector<std::atomic<uint64_t>>(static_cast<size_t>(num_layers) * num_experts);
  }

  // 0: nothing is counted, the model has no experts.
  int num_layers() const { return num_layers_; }
  int num_experts() const { return num_experts_; }

  uint64_t Get(int layer, int expert) const {
    return counts_[Index(layer, expert)].load(std::memory_order_relaxed);
  }
  void Add(int layer, int expert, uint64_t count) {
    counts_[Index(layer, expert)].fetch_add(count, std::memory_order_relaxed);
  }
  void Set(int layer, int expert, uint64_t count) {
    counts_[Index(layer, expert)].store(count, std::memory_order_relaxed);
  }

 private:
  size_t Index(int layer, int expert) const {
    return static_cast<size_t>(layer) * num_experts_ + expert;
  }

  int num_layers_ = 0;
  int num_experts_ = 0;
  std::vector<std::atomic<uint64_t>> counts_;  // [layers, experts]
};

}  // namespace lapidary
