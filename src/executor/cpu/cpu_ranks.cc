#include "executor/cpu/cpu_ranks.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/forward.h"

namespace lapidary::cpu {

void AddInRankOrder(const std::vector<std::span<float>>& parts, ThreadPool& threads) {
  constexpr int64_t kPiece = 1 << 12;
  const std::span<float> sum = parts[0];
  for (const std::span<float> part : parts) CHECK_EQ(part.size(), sum.size());
  threads.ParallelFor(std::ssize(sum), kPiece, [&](int64_t begin, int64_t end, int) {
    for (size_t rank = 1; rank < parts.size(); ++rank) {
      for (int64_t idx = begin; idx < end; ++idx) sum[idx] += parts[rank][idx];
    }
    for (size_t rank = 1; rank < parts.size(); ++rank) {
      std::copy(sum.begin() + begin, sum.begin() + end, parts[rank].begin() + begin);
    }
  });
}

CpuRanks::Rank::Rank(RankWeights from, KvMemory memory, const KvLayout& layout,
                     const SlotTables& tables, ThreadPool& threads, const RankOptions& options)
    : own(std::move(from)),
      kv(std::move(memory)),
      forward(own.shard.plan, own.shard.first_token, own.weights, layout, kv, tables, threads,
              // All ranks choose the same experts.
              own.shard.rank == 0 ? options.expert_counts : nullptr, options.bf16_math) {}

Result<std::unique_ptr<CpuRanks>> CpuRanks::Make(std::vector<RankWeights> weights,
                                                 const ModelPlan& plan, const KvLayout& layout,
                                                 const SlotTables& tables, ThreadPool& threads,
                                                 const RankOptions& options) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (RankWeights& own : weights) {
    ASSIGN_OR_RETURN(KvMemory kv, KvMemory::Allocate(layout, options.num_pages));
    ranks.push_back(
        std::make_unique<Rank>(std::move(own), std::move(kv), layout, tables, threads, options));
  }
  return std::unique_ptr<CpuRanks>(
      new CpuRanks(std::move(ranks), plan, layout, tables, threads, options.skip_unneeded_rows));
}

void CpuRanks::CopyPage(const PageCopy& copy) {
  for (const auto& rank : ranks_) rank->kv.Copy(layout_, copy);
}

void CpuRanks::Run(StepRows rows) {
  for (const int32_t token : rows.token_ids) {
    CHECK(token >= 0 && token < plan_.vocab_size) << token;
  }
  for (int rank = 1; rank < size(); ++rank) ranks_[rank]->forward.Begin(rows);
  ranks_[0]->forward.Begin(std::move(rows));
  ForwardOps& ops = size() == 1 ? static_cast<ForwardOps&>(ranks_[0]->forward) : *this;
  RunDecoder(plan_, skip_unneeded_rows_, size(), ops);
}

std::span<const float> CpuRanks::logits() {
  return size() == 1 ? ranks_[0]->forward.logits() : std::span<float>(logits_);
}

DraftTarget CpuRanks::TargetOf(int rank) const {
  const Rank& own = *ranks_[rank];
  return {own.own.shard.plan, own.own.weights, layout_, own.kv, tables_, own.own.shard.first_token};
}

void CpuRanks::AllReduce(PartialSum what) {
  const size_t num_parts = ranks_[0]->forward.Partial(what).size();
  for (size_t part = 0; part < num_parts; ++part) {
    std::vector<std::span<float>> parts;
    for (const auto& rank : ranks_) parts.push_back(rank->forward.Partial(what)[part]);
    AddInRankOrder(parts, threads_);
  }
}

void CpuRanks::Embed() {
  for (const auto& rank : ranks_) rank->forward.Embed();
}

void CpuRanks::MakePerLayerInputs() {
  for (const auto& rank : ranks_) rank->forward.MakePerLayerInputs();
}

void CpuRanks::KeepOutputRows() {
  for (const auto& rank : ranks_) rank->forward.KeepOutputRows();
}

void CpuRanks::ProjectAttention(const LayerPlan& layer) {
  OnEach(layer, [](CpuForward& forward, const LayerPlan& own) { forward.ProjectAttention(own); });
}

void CpuRanks::Attend(const LayerPlan& layer) {
  OnEach(layer, [](CpuForward& forward, const LayerPlan& own) { forward.Attend(own); });
}

void CpuRanks::AttentionOutput(const LayerPlan& layer) {
  OnEach(layer, [](CpuForward& forward, const LayerPlan& own) { forward.AttentionOutput(own); });
}

void CpuRanks::AddAttention(const LayerPlan& layer) {
  OnEach(layer, [](CpuForward& forward, const LayerPlan& own) { forward.AddAttention(own); });
}

void CpuRanks::DenseMlp(const LayerPlan& layer) {
  OnEach(layer, [](CpuForward& forward, const LayerPlan& own) { forward.DenseMlp(own); });
}

void CpuRanks::Experts(const LayerPlan& layer) {
  OnEach(layer, [](CpuForward& forward, const LayerPlan& own) { forward.Experts(own); });
}

void CpuRanks::JoinExperts(const LayerPlan& layer) {
  OnEach(layer, [](CpuForward& forward, const LayerPlan& own) { forward.JoinExperts(own); });
}

void CpuRanks::MlpOutput(const LayerPlan& layer) {
  OnEach(layer, [](CpuForward& forward, const LayerPlan& own) { forward.MlpOutput(own); });
}

void CpuRanks::PerLayerGate(const LayerPlan& layer) {
  OnEach(layer, [](CpuForward& forward, const LayerPlan& own) { forward.PerLayerGate(own); });
}

void CpuRanks::StoreKv(const LayerPlan& layer) {
  OnEach(layer, [](CpuForward& forward, const LayerPlan& own) { forward.StoreKv(own); });
}

void CpuRanks::Head() {
  const int64_t num_outputs = std::ssize(rows().output_rows);
  logits_.resize(num_outputs * plan_.vocab_size);
  for (const auto& rank : ranks_) {
    rank->forward.Head();
    const int64_t own_size = rank->own.shard.plan.vocab_size;
    const float* own = rank->forward.logits().data();
    for (int64_t row = 0; row < num_outputs; ++row) {
      std::copy_n(own + row * own_size, own_size,
                  logits_.data() + row * plan_.vocab_size + rank->own.shard.first_token);
    }
  }
}

}  // namespace lapidary::cpu
