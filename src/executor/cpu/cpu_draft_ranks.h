// The assistant of a model that is split over ranks: each has the heads of the assistant that read
// the KV heads it has of the target, and all else whole. A drafter with one rank is just that one.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "executor/cpu/cpu_drafter.h"
#include "executor/cpu/cpu_ranks.h"

namespace lapidary::cpu {

// The calls of CpuDrafter.
class CpuDraftRanks {
 public:
  // All arguments must outlive it.
  static Result<std::unique_ptr<CpuDraftRanks>> Make(const DrafterOptions& options,
                                                     const CpuRanks& target, ThreadPool& threads);

  void Begin(std::span<const DraftStart> starts);
  void KeepFirst(int64_t count);
  std::span<const float> NextLogits();
  void Feed(std::span<const int32_t> tokens);

 private:
  struct Rank {
    DrafterOptions options;  // with the rank's plan
    std::shared_ptr<const TensorSource> source;
    AssistantWeights weights;
    std::unique_ptr<CpuDrafter> drafter;
  };

  explicit CpuDraftRanks(ThreadPool& threads) : threads_(threads) {}
  // Adds up what `part` makes of each rank's drafter.
  template <typename Part>
  void AddUp(const Part& part);

  ThreadPool& threads_;
  std::deque<Rank> ranks_;  // which drafters point into
};

}  // namespace lapidary::cpu
