#include "executor/cuda/memory_needs.h"

#include <gtest/gtest.h>

#include "model/assistant_preset.h"
#include "model/footprint.h"
#include "model/presets.h"
#include "ops/cuda/linear/linear_scratch.h"

namespace lapidary::cuda {
namespace {

ModelPlan PresetPlan(const std::string& name) {
  return MakeModelPlan(ParseModelConfig(*PresetConfig(name), name).value()).value();
}

CudaForwardLimits Limits(int max_num_seqs, int max_num_batched_tokens) {
  CudaExecutorOptions options;
  options.max_num_seqs = max_num_seqs;
  options.max_num_batched_tokens = max_num_batched_tokens;
  return ForwardLimits(WithRoomForPadding(options));
}

WorkspaceBytes Plan(const std::string& preset, const CudaForwardLimits& limits) {
  const ModelPlan plan = PresetPlan(preset);
  return PlanWorkspace(plan, MakeKvLayout(plan, kKvFormat), limits);
}

TEST(ForwardLimits, LeaveRoomForThePaddingOfTheLargestDecodeStep) {
  EXPECT_EQ(Limits(33, 64).max_sequences, 48);
  EXPECT_EQ(Limits(33, 64).max_rows, 64);
  EXPECT_EQ(Limits(33, 8).max_rows, 48);
  EXPECT_EQ(Limits(256, 2048).max_sequences, 256);
  EXPECT_EQ(Limits(1000, 2048).max_sequences, 1000);  // No graph is so large.
  EXPECT_EQ(Limits(1, 64).max_logit_rows, 16);
}

TEST(ForwardLimits, PadStepsThatVerifyDraftsLess) {
  EXPECT_EQ(PaddedSequences(100, 1), 112);
  EXPECT_EQ(PaddedSequences(100, 4), 104);
  EXPECT_EQ(PaddedSequences(40, 1), 48);
  EXPECT_EQ(PaddedSequences(40, 4), 40);
  EXPECT_EQ(PaddedSequences(300, 4), 0);
  for (int sequences = 1; sequences <= 256; ++sequences) {
    EXPECT_GE(PaddedSequences(sequences, 4), sequences);
    EXPECT_LE(PaddedSequences(sequences, 4), PaddedSequences(sequences, 1)) << sequences;
  }
}

// 31B's gate and up of 8,192 rows are 705 MB: three parts, of which none is a sliver.
TEST(GatedPartRows, AreEvenAndFitTheScratch) {
  constexpr int kOutputs = 43'008;
  const int64_t bytes = GatedProductBytes(8192);
  EXPECT_EQ(GatedPartRows(8192, kOutputs, bytes), 2731);
  EXPECT_EQ(GatedPartRows(100, kOutputs, bytes), 100);
  EXPECT_LE(GatedPartRows(3121, kOutputs, bytes) * int64_t{2} * kOutputs, bytes);
  EXPECT_EQ(GatedPartRows(1, kOutputs, 1000), 0);
}

TEST(MostRowsStoredAtEnd, AreThoseOfAllDraftsWhereTheyTakeLittle) {
  CudaForwardLimits limits = Limits(80, 8192);
  const ModelPlan moe = PresetPlan("26b-a4b");
  EXPECT_EQ(MostRowsStoredAtEnd(moe, limits), 80);
  limits.max_drafts = 3;
  EXPECT_EQ(MostRowsStoredAtEnd(moe, limits), 320);
  // A row of 31B is 870,400 bytes of new entries.
  EXPECT_EQ(MostRowsStoredAtEnd(PresetPlan("31b"), limits), (128 << 20) / 870'400);
  limits.max_sequences = 256;  // at least a row for each
  EXPECT_EQ(MostRowsStoredAtEnd(PresetPlan("31b"), limits), 256);
  limits.max_rows = 300;
  EXPECT_EQ(MostRowsStoredAtEnd(moe, limits), 300);
}

// E2B by hand: hidden 1536, 8 heads, MLP up to 12288, 35 layers with 256 per-layer values, of which
// 15 own KV (12 sliding of 512 values a row, 3 full of 1024; one of each is a donor).
TEST(PlanWorkspace, E2bIsWhatItsDimensionsSay) {
  const WorkspaceBytes bytes = Plan("e2b", Limits(256, 2048));
  EXPECT_EQ(bytes.blocks.hidden, 2048 * 1536 * 4);
  EXPECT_EQ(bytes.blocks.narrow, 2048 * 1536 * 2);
  EXPECT_EQ(bytes.blocks.wide, 2048 * 12288 * 2);
  EXPECT_EQ(bytes.blocks.queries, 2048 * 8 * 512 * 2);
  EXPECT_EQ(bytes.blocks.attended, 2048 * 8 * 512 * 2);
  EXPECT_EQ(bytes.ple, 2048 * 35 * 256 * 2);
  EXPECT_EQ(bytes.gathered, bytes.ple);  // the widest row that moves
  EXPECT_EQ(bytes.logits, 256ll * 262144 * 4);
  EXPECT_EQ(bytes.small_entries, 256 * (12 * 512 + 3 * 1024) * 2);
  EXPECT_EQ(bytes.large_entries, 2048 * (512 + 1024 + 1024) * 2);  // two donors, one other
  EXPECT_EQ(bytes.stored_layers, 15 * kStoredLayerBytes);
  EXPECT_EQ(bytes.blocks.rope, 128 * 4 + 64 * 4 + 2048 * (128 + 64) * 8);
  EXPECT_EQ(bytes.linear, (int64_t{64} << 20) + (int64_t{256} << 20));
  EXPECT_EQ(bytes.expert_scratch, 0);
  EXPECT_EQ(bytes.page_copies, 256 * 2 * 8);
}

// A context of 131,072 tokens in pages of 32 (sliding) and 64 (full).
TEST(PlanSlots, ATableHasAPlaceForEveryBlockOfTheContext) {
  const ModelPlan plan = PresetPlan("e2b");
  const KvLayout layout = MakeKvLayout(plan, kKvFormat);
  const SlotBytes bytes = PlanSlots(plan, layout, 257);
  EXPECT_EQ(bytes.tables[kSlidingGroup], 257 * (4096 + 2) * 4);
  EXPECT_EQ(bytes.tables[kFullGroup], 257 * (2048 + 2) * 4);
  EXPECT_EQ(bytes.states, 257 * 16);
  EXPECT_GE(bytes.replaced, 2 * 262144 * 4);  // what a row's adjustments may replace
}

TEST(PlanWorkspace, ExpertsHaveScratchForEveryChoice) {
  const ModelPlan plan = PresetPlan("26b-a4b");
  const int64_t rows = 2048;
  const WorkspaceBytes bytes = Plan("26b-a4b", Limits(256, 2048));
  const int64_t choices = rows * plan.moe->top_k;
  EXPECT_EQ(bytes.router_choice, choices * 8);
  const int64_t least = choices * (plan.moe->expert_width + plan.hidden_size) * 2;
  EXPECT_GE(bytes.expert_scratch, least);
  EXPECT_LE(bytes.expert_scratch, least + least / 100);
}

TEST(PlanWorkspace, ExpertsAreCountedByLayerAndThenNoStepIsOneKernel) {
  CudaForwardLimits limits = Limits(256, 2048);
  EXPECT_EQ(Plan("26b-a4b", limits).expert_counts, 0);
  CudaExecutorOptions options;
  options.expert_counts = std::make_shared<ExpertCounts>();
  limits.counts_experts = ForwardLimits(options).counts_experts;
  EXPECT_EQ(Plan("26b-a4b", limits).expert_counts, 30 * 128 * 8);
  EXPECT_EQ(Plan("e2b", limits).expert_counts, 0);
  EXPECT_FALSE(ForwardLimits(options).resident_steps);
}

TEST(PlanWorkspace, BatchInvariantStepsUseNoLibraryButCombineInOrder) {
  CudaForwardLimits limits = Limits(256, 2048);
  const WorkspaceBytes plain = Plan("e2b", limits);
  limits.batch_invariant = true;
  const WorkspaceBytes invariant = Plan("e2b", limits);
  EXPECT_EQ(invariant.linear, 0);
  EXPECT_GT(invariant.partials, plain.partials);
}

TEST(PlanWorkspace, TotalCountsEveryBuffer) {
  // One byte in each member, and the pairs twice: a member that total() forgets shows.
  WorkspaceBytes bytes;
  int64_t* const members = reinterpret_cast<int64_t*>(&bytes);
  constexpr int kNumMembers = sizeof(WorkspaceBytes) / sizeof(int64_t);
  std::fill(members, members + kNumMembers, 1);
  EXPECT_EQ(bytes.total(), kNumMembers + 3);
}

WeightPlan Dummies(const ModelPlan& plan) {
  return WeightPlan::OfDummies(RequiredTensors(plan), WeightReader::kGpu);
}

TEST(PlanWeights, MatricesAreBf16AndVectorsF32) {
  for (const char* preset : {"e2b", "31b", "26b-a4b"}) {
    const ModelPlan plan = PresetPlan(preset);
    const WeightBytes bytes = PlanWeights(Dummies(plan), PlePlacement::kDevice);
    const int64_t parameters = MakeFootprint(plan).total();
    EXPECT_EQ(bytes.host_table, 0);
    EXPECT_GE(bytes.on_device(), 2 * parameters) << preset;
    EXPECT_LE(bytes.on_device(), 2 * parameters + 2 * parameters / 1000) << preset;
  }
}

TEST(PlanWeights, TheTableOfPerLayerEmbeddingsMayLiveOnTheHost) {
  const ModelPlan plan = PresetPlan("e2b");
  const WeightBytes device = PlanWeights(Dummies(plan), PlePlacement::kDevice);
  const WeightBytes host = PlanWeights(Dummies(plan), PlePlacement::kHost);
  EXPECT_EQ(host.host_table, 2 * MakeFootprint(plan).per_layer_embedding);
  EXPECT_EQ(host.on_device() + host.host_table, device.on_device());
}

// A draft of one sequence is one kernel unless steps are to be the same bits in every batch.
TEST(PlanDrafter, HasRoomForDraftsAsOneKernel) {
  const AssistantPlan assistant =
      MakeAssistantPlan(ParseAssistantConfig(*AssistantPresetConfig("e2b"), "assistant").value());
  CudaForwardLimits limits = Limits(8, 64);
  const DrafterBytes bytes = PlanDrafter(assistant, limits);
  const ResidentExchanges exchanges = PlanExchanges(assistant.decoder);
  EXPECT_EQ(exchanges.num_phases, 4 * assistant.decoder.num_layers + 1);
  EXPECT_EQ(bytes.resident, ResidentScratchLayout(limits.num_sms, exchanges).total +
                                ResidentProgramLayout::Total(exchanges.num_phases));
  limits.batch_invariant = true;
  EXPECT_EQ(PlanDrafter(assistant, limits).total(), bytes.total() - bytes.resident);
}

}  // namespace
}  // namespace lapidary::cuda
