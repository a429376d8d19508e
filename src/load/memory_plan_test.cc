#include "load/memory_plan.h"

#include <gtest/gtest.h>

#include "executor/cuda/memory_needs.h"
#include "model/assistant_preset.h"
#include "model/presets.h"

namespace lapidary {
namespace {

ModelPlan PresetPlan(const std::string& name) {
  return MakeModelPlan(ParseModelConfig(*PresetConfig(name), name).value()).value();
}

// One H200 (143,771 MiB at 90%), sequences of 16,384 tokens, worked out by hand:
//   pages_per_sequence = ceil(16384 / full) + ceil((window + 32) / sliding) + 2
//   pages = (135,679,338,086 - weights - workspace) / page_bytes, one of them scratch
struct Case {
  const char* preset;
  int sliding_tokens;
  int full_tokens;
  int64_t page_bytes;  // sliding tokens x bytes per token = full tokens x bytes per token
  int64_t pages_per_sequence;
  int64_t max_sequences;
};

constexpr Case kH200[] = {
    // 32 x 12,288 = 64 x 6,144; 256 + 17 + 2; (125.43e9 / 393,216 = 318,986) / 275
    {"e2b", 32, 64, 393216, 275, 1159},
    // 128 x 40,960 = 320 x 16,384; 52 + 5 + 2; (119.71e9 / 5,242,880 = 22,832) / 59
    {"e4b", 128, 320, 5242880, 59, 386},
    // 16 x 327,680 = 512 x 10,240; 32 + 66 + 2; (110.71e9 / 5,242,880 = 21,116) / 100
    {"12b", 16, 512, 5242880, 100, 211},
    // 16 x 204,800 = 256 x 12,800; 64 + 66 + 2; (83.03e9 / 3,276,800 = 25,337) / 132
    {"26b-a4b", 16, 256, 3276800, 132, 191},
    // 16 x 819,200 = 256 x 51,200; 64 + 66 + 2; (72.82e9 / 13,107,200 = 5,555) / 132
    {"31b", 16, 256, 13107200, 132, 42},
};

TEST(MemoryPlanTest, AnH200HoldsWhatTheArithmeticSays) {
  for (const Case& expected : kH200) {
    MemoryRequest request;
    request.memory_bytes = ParseBytes("143771MiB").value();
    request.limits.max_model_len = 16384;
    const auto plan = PlanMemory(PresetPlan(expected.preset), request);
    ASSERT_TRUE(plan.ok()) << expected.preset;
    EXPECT_EQ(plan->layout.tokens_per_page[kSlidingGroup], expected.sliding_tokens)
        << expected.preset;
    EXPECT_EQ(plan->layout.tokens_per_page[kFullGroup], expected.full_tokens) << expected.preset;
    EXPECT_EQ(plan->layout.page_bytes, expected.page_bytes) << expected.preset;
    EXPECT_EQ(plan->pages_per_sequence, expected.pages_per_sequence) << expected.preset;
    EXPECT_EQ(plan->max_sequences, expected.max_sequences) << expected.preset;
    EXPECT_GE(plan->max_tokens, plan->max_sequences * 16384) << expected.preset;
    EXPECT_LT(plan->max_tokens, (plan->max_sequences + 1) * 16384) << expected.preset;
    EXPECT_LE(plan->waste, 0.05) << expected.preset;
  }
}

TEST(MemoryPlanTest, WeightsWorkspaceAndPagesAddUpToTheMemory) {
  MemoryRequest request;
  request.memory_bytes = ParseBytes("80GB").value();
  const auto plan = PlanMemory(PresetPlan("e4b"), request).value();
  EXPECT_EQ(plan.usable_bytes, 72'000'000'000);
  EXPECT_EQ(plan.pool_bytes, plan.usable_bytes - plan.weight_bytes - plan.workspace_bytes);
  const int64_t used = plan.num_pages * plan.layout.page_bytes;
  EXPECT_LE(used, plan.pool_bytes);
  EXPECT_GT(used + plan.layout.page_bytes, plan.pool_bytes);
}

TEST(MemoryPlanTest, TowersTakeTheirMemoryFromThePool) {
  MemoryRequest request;
  request.memory_bytes = ParseBytes("80GB").value();
  const auto without = PlanMemory(PresetPlan("e4b"), request).value();
  request.tower_bytes = ParseBytes("1.5GB").value();
  const auto with = PlanMemory(PresetPlan("e4b"), request).value();
  EXPECT_EQ(with.tower_bytes, 1'500'000'000);
  EXPECT_EQ(with.pool_bytes, without.pool_bytes - with.tower_bytes);
}

// tests/cuda_executor_test.cc has the other half: that is what the executor allocates.
TEST(MemoryPlanTest, WeightsAndWorkspaceAreTheExecutorsOwnFormulas) {
  const ModelPlan model = PresetPlan("e4b");
  MemoryRequest request;
  request.memory_bytes = ParseBytes("80GB").value();
  request.limits = {.max_num_seqs = 33, .max_num_batched_tokens = 700, .max_model_len = 1000};
  request.cuda.ple_placement = cuda::PlePlacement::kHost;
  request.cuda.batch_invariant = true;
  const auto plan = PlanMemory(model, request).value();
  cuda::CudaExecutorOptions options = request.cuda;
  options.max_num_seqs = 33;
  options.max_num_batched_tokens = 700;
  const WeightPlan weights = WeightPlan::OfDummies(RequiredTensors(model), WeightReader::kGpu);
  EXPECT_EQ(plan.weight_bytes, cuda::PlanWeights(weights, cuda::PlePlacement::kHost).on_device());
  const auto limits = cuda::ForwardLimits(cuda::WithRoomForPadding(options));
  EXPECT_EQ(plan.workspace_bytes, cuda::PlanWorkspace(model, plan.layout, limits).total());
}

TEST(MemoryPlanTest, TooLittleMemoryIsAnErrorThatSaysWhereItWent) {
  MemoryRequest request;
  request.memory_bytes = ParseBytes("24GB").value();
  const auto plan = PlanMemory(PresetPlan("31b"), request);
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.error().message.find("61.40 GB"), std::string::npos) << plan.error().message;
}

TEST(MemoryPlanTest, AContextBeyondTheModelsIsRefused) {
  MemoryRequest request;
  request.memory_bytes = ParseBytes("80GB").value();
  request.limits.max_model_len = 131073;
  EXPECT_FALSE(PlanMemory(PresetPlan("e2b"), request).ok());
}

TEST(MemoryPlanTest, AGivenPoolIsTakenAsItIs) {
  MemoryRequest request;
  request.kv_cache_bytes = ParseBytes("1GiB").value();
  const auto plan = PlanMemory(PresetPlan("e2b"), request).value();
  EXPECT_EQ(plan.num_pages, (int64_t{1} << 30) / 393216);
}

// A laptop: E2B in Q4_0, KV in f32.
TEST(PlanCpuMemory, CountsWeightsAsTheyAreStoredAndKvInF32) {
  const ModelPlan model = PresetPlan("e2b");
  const std::vector<TensorSpec> specs = RequiredTensors(model);
  const auto weights = [&](WeightReader reader, std::optional<DType> rounding) {
    return WeightPlan::Make(specs, nullptr, {.reader = reader, .rounding = rounding});
  };
  EXPECT_TRUE(weights(WeightReader::kGpu, std::nullopt).ok());
  const WeightPlan plain = weights(WeightReader::kCpu, std::nullopt).value();
  EXPECT_NEAR(static_cast<double>(plain.loaded_bytes()), 9.26e9, 1e7);
  // On the GPU the per-layer table takes 8.5 bits, the per-layer matrices stay in bf16.
  EXPECT_NEAR(static_cast<double>(weights(WeightReader::kGpu, DType::kQ4_0)->loaded_bytes()),
              2.50e9 + 0.43e9 + 1.03e9 + 0.08e9, 5e7);
  const WeightPlan rounded = weights(WeightReader::kCpu, DType::kQ4_0).value();
  // The per-layer table (4.70 GB) stays in bf16, 0.40 G embeddings take 8.5 bits, the rest of 1.87
  // G takes 4.5, but for per_layer_model_projection.
  EXPECT_NEAR(static_cast<double>(rounded.loaded_bytes()), 4.70e9 + 0.43e9 + 1.09e9, 5e7);
  MemoryRequest request;
  request.memory_bytes = 16'000'000'000;
  request.weights = rounded;
  const MemoryPlan memory = PlanCpuMemory(model, request).value();
  EXPECT_EQ(memory.weight_bytes, rounded.loaded_bytes());
  EXPECT_EQ(memory.layout.format, KvFormat::kF32);
  EXPECT_EQ(memory.max_model_len, 8192);
  EXPECT_EQ(memory.pool_bytes, memory.usable_bytes - memory.weight_bytes - memory.workspace_bytes);
  EXPECT_GT(memory.max_sequences, 10);
  request.memory_bytes = 6'000'000'000;
  EXPECT_FALSE(PlanCpuMemory(model, request).ok());
}

// 31B in bf16: half of 32 and of 16 + 4 KV heads, 5,376 norms and the like twice.
TEST(PlanCpuMemory, OfSeveralRanksIsThatOfTheLargest) {
  const ModelPlan model = PresetPlan("31b");
  MemoryRequest request;
  request.memory_bytes = 200'000'000'000;
  const MemoryPlan whole = PlanCpuMemory(model, request).value();
  request.num_ranks = 2;
  const MemoryPlan half = PlanCpuMemory(model, request).value();
  EXPECT_NEAR(static_cast<double>(half.weight_bytes), 0.5 * static_cast<double>(whole.weight_bytes),
              5e6);
  EXPECT_GT(2 * half.weight_bytes, whole.weight_bytes);
  EXPECT_EQ(half.layout.tokens_per_page, whole.layout.tokens_per_page);
  EXPECT_EQ(2 * half.layout.page_bytes, whole.layout.page_bytes);
  // Q5_0's blocks of 32 columns: 26B's experts are 22 of them, its MLP 66, of which the largest of
  // four ranks has 6 and 17.
  const ModelPlan experts = PresetPlan("26b-a4b");
  request.weights = WeightPlan::Make(RequiredTensors(experts), nullptr,
                                     {.reader = WeightReader::kCpu, .rounding = DType::kQ4_0})
                        .value();
  const auto weights_of = [&](int num_ranks) {
    request.num_ranks = num_ranks;
    return static_cast<double>(PlanCpuMemory(experts, request)->weight_bytes);
  };
  EXPECT_NEAR(weights_of(2) / weights_of(1), 0.5, 0.01);
  EXPECT_NEAR(weights_of(4) / weights_of(1), 6.0 / 22, 0.01);
  request.num_ranks = 3;
  EXPECT_NE(PlanCpuMemory(experts, request).error().message.find("1, 2, 4, 8 work"),
            std::string::npos);
}

TEST(ParseBytesTest, UnitsAreDecimalOrBinaryAsSpelled) {
  EXPECT_EQ(ParseBytes("143771MiB").value(), int64_t{143771} << 20);
  EXPECT_EQ(ParseBytes("80GB").value(), 80'000'000'000);
  EXPECT_EQ(ParseBytes("1.5GiB").value(), int64_t{3} << 29);
  EXPECT_EQ(ParseBytes("12 MB").value(), 12'000'000);
  EXPECT_EQ(ParseBytes("4096").value(), 4096);
  for (const char* bad : {"", "GB", "-1GB", "80 gigabytes", "1e30GB", "nan", "80GBx"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
}

TEST(PlanMemory, AnAssistantTakesItsWeightsAndItsRounds) {
  MemoryRequest request;
  request.memory_bytes = 80'000'000'000;
  const ModelPlan model = PresetPlan("e4b");
  const MemoryPlan alone = PlanMemory(model, request).value();
  const AssistantConfig config =
      ParseAssistantConfig(AssistantPresetConfig("e4b").value(), "e4b").value();
  request.cuda.drafter.emplace();
  request.cuda.drafter->plan = PairAssistant(MakeAssistantPlan(config), model).value();
  request.cuda.max_drafts = 3;
  const MemoryPlan paired = PlanMemory(model, request).value();
  // Its head alone has 262,144 rows of 256 values in bf16.
  EXPECT_GT(paired.weight_bytes - alone.weight_bytes, 262144 * 256 * 2);
  EXPECT_LT(paired.weight_bytes - alone.weight_bytes, 2 * 262144 * 256 * 2);
  // 512 rows of logits instead of 256.
  EXPECT_GT(paired.workspace_bytes - alone.workspace_bytes, int64_t{256} * 262144 * 4);
  EXPECT_LT(paired.num_pages, alone.num_pages);
}

}  // namespace
}  // namespace lapidary
