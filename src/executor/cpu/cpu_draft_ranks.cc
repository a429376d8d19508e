#include "executor/cpu/cpu_draft_ranks.h"

#include "model/shard.h"
#include "model/shard_source.h"

namespace lapidary::cpu {

Result<std::unique_ptr<CpuDraftRanks>> CpuDraftRanks::Make(const DrafterOptions& options,
                                                           const CpuRanks& target,
                                                           ThreadPool& threads) {
  auto all = std::unique_ptr<CpuDraftRanks>(new CpuDraftRanks(threads));
  for (int idx = 0; idx < target.size(); ++idx) {
    Rank& rank = all->ranks_.emplace_back(Rank{options, options.source, {}, nullptr});
    if (target.size() > 1) {
      ASSIGN_OR_RETURN(const CutUnits units,
                       CutUnitsOf(RequiredTensors(options.plan), *options.source));
      ASSIGN_OR_RETURN(AssistantShard shard, ShardOf(options.plan, idx, target.size(), units));
      rank.options.plan = std::move(shard.plan);
      ASSIGN_OR_RETURN(rank.source, ShardSource::Make(shard.tensors, options.source, threads));
    }
    ASSIGN_OR_RETURN(rank.weights, BindWeights(rank.options.plan, *rank.source));
    rank.drafter =
        std::make_unique<CpuDrafter>(rank.options, rank.weights, target.TargetOf(idx), threads);
  }
  return all;
}

void CpuDraftRanks::Begin(std::span<const DraftStart> starts) {
  for (Rank& rank : ranks_) rank.drafter->Begin(starts);
}

void CpuDraftRanks::KeepFirst(int64_t count) {
  for (Rank& rank : ranks_) rank.drafter->KeepFirst(count);
}

template <typename Part>
void CpuDraftRanks::AddUp(const Part& part) {
  std::vector<std::span<float>> parts;
  for (Rank& rank : ranks_) parts.push_back(part(*rank.drafter));
  AddInRankOrder(parts, threads_);
}

std::span<const float> CpuDraftRanks::NextLogits() {
  if (ranks_.size() == 1) return ranks_[0].drafter->NextLogits();
  AddUp([](CpuDrafter& drafter) { return drafter.MakeInputs(); });
  for (Rank& rank : ranks_) rank.drafter->ProjectInputs();
  for (int layer = 0; layer < ranks_[0].drafter->num_layers(); ++layer) {
    AddUp([&](CpuDrafter& drafter) { return drafter.Attend(layer); });
    for (Rank& rank : ranks_) rank.drafter->FinishLayer(layer);
  }
  for (Rank& rank : ranks_) rank.drafter->ProjectOutputs();
  return ranks_[0].drafter->Head();
}

void CpuDraftRanks::Feed(std::span<const int32_t> tokens) {
  for (Rank& rank : ranks_) rank.drafter->Feed(tokens);
}

}  // namespace lapidary::cpu
