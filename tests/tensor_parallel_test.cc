// A model split over ranks against the whole: logits within 1e-5, or as near as one rank's are to
// the truth, on every kind of model there is; drafts; and within a split the same bits in every
// mode.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/single_sequence.h"
#include "executor/cpu/cpu_executor.h"
#include "executor/cpu/naive_decoder.h"
#include "load/load_model.h"
#include "model/assistant_preset.h"
#include "model/converted_source.h"
#include "model/presets.h"
#include "model/tensor_sources.h"
#include "tests/step_testing.h"
#include "tests/test_models.h"

namespace lapidary {
namespace {

constexpr double kTolerance = 1e-5;  // of the largest logit
// Of a round's, which makes more of every difference with each draft that it feeds back.
constexpr double kDraftTolerance = 1e-4;
constexpr int kNumTokens = 70;

// The heads of a published model's layers, two of full attention, and what they share; small in
// everything else. Deeper, random weights would make more of every rounding.
Json SmallConfig(const std::string& preset) {
  Json config = TestConfig(preset);
  Json& text = config.contains("text_config") ? config["text_config"] : config;
  const int num_layers = preset == "e2b" ? 10 : 12;
  const Json kinds = text["layer_types"];
  text.update({{"hidden_size", 64},
               {"head_dim", 16},
               {"global_head_dim", 32},
               {"intermediate_size", 176},
               {"num_hidden_layers", num_layers},
               {"layer_types", Json(kinds.begin(), kinds.begin() + num_layers)},
               {"sliding_window", 24},
               {"vocab_size", 320},
               {"max_position_embeddings", 512}});
  if (text.value("num_kv_shared_layers", 0) > 0) text["num_kv_shared_layers"] = 4;
  if (text.value("hidden_size_per_layer_input", 0) > 0) {
    text.update({{"hidden_size_per_layer_input", 8}, {"vocab_size_per_layer_input", 320}});
  }
  if (text.value("enable_moe_block", false)) {
    text.update({{"num_experts", 12}, {"top_k_experts", 3}, {"moe_intermediate_size", 24}});
  }
  return config;
}

bool IsPublished(const std::string& name) { return IsPreset(name) && !name.starts_with("tiny"); }

Json ConfigOf(const std::string& name) {
  return IsPublished(name) ? SmallConfig(name) : TestConfig(name);
}

struct TestModel {
  ModelPlan plan;
  std::shared_ptr<const TensorSource> source;
  DrafterOptions drafter;

  explicit TestModel(const std::string& name) {
    ThreadPool threads(2);
    const Json config = ConfigOf(name);
    plan = MakeModelPlan(ParseModelConfig(config, name).value()).value();
    source = DummySource::Make(plan, /*seed=*/3, threads).value();
    const bool ordered = plan.ple.has_value();
    const AssistantConfig assistant =
        ParseAssistantConfig(TinyAssistantConfig(config, ordered).value(), name).value();
    drafter.plan = PairAssistant(MakeAssistantPlan(assistant), plan).value();
    drafter.source = AssistantSource::MakeDummy(drafter.plan, /*seed=*/3, threads).value();
  }

  std::unique_ptr<cpu::CpuExecutor> Executor(int num_ranks, int num_threads = 2) const {
    auto executor = cpu::CpuExecutor::Create(plan, source,
                                             {.num_threads = num_threads,
                                              .num_ranks = num_ranks,
                                              .num_pages = 100,
                                              .drafter = drafter})
                        .value();
    // Nothing unwritten may ever count.
    for (int rank = 0; rank < num_ranks; ++rank) {
      for (PageIndex page = 0; page < executor->num_pages(); ++page) {
        executor->kv_memory_for_test(rank).Poison(executor->kv_layout(), page);
      }
    }
    return executor;
  }
};

// The largest difference of two rows of logits, in parts of the largest logit. What an ordered head
// did not score is -inf in both.
double Difference(std::span<const float> expected, std::span<const float> actual) {
  EXPECT_EQ(expected.size(), actual.size());
  double largest = 0.0, worst = 0.0;
  for (size_t idx = 0; idx < expected.size(); ++idx) {
    if (std::isinf(expected[idx]) && expected[idx] == actual[idx]) continue;
    largest = std::max<double>(largest, std::abs(expected[idx]));
    const double error = std::abs(double{expected[idx]} - double{actual[idx]});
    if (!(error <= worst)) worst = error;  // NaN stays.
  }
  return worst / largest;
}

// Computed in doubles.
Logits TrueLogits(const TestModel& model, const std::vector<int32_t>& ids) {
  NaiveDecoder decoder(model.plan, LoadNaiveTensors(RequiredTensors(model.plan), *model.source));
  Logits all;
  for (const NaiveDecoder::Vec& row : decoder.Run(ids))
    all.insert(all.end(), row.begin(), row.end());
  return all;
}

// Where random weights make more of roundings than usual, sums in another order do as well.
double Tolerance(const std::string& name, const TestModel& model, const std::vector<int32_t>& ids,
                 const Logits& of_one_rank) {
  if (name == "odd-moe") return 2 * kTolerance;
  if (name.starts_with("odd")) return kTolerance;  // NaiveDecoder leaves out what is odd.
  const double of_rounding = Difference(TrueLogits(model, ids), of_one_rank);
  EXPECT_LE(of_rounding, 1e-4);
  testing::Test::RecordProperty("difference_of_rounding", fmt::format("{:.2e}", of_rounding));
  return name.starts_with("tiny") ? kTolerance : std::max(kTolerance, 2 * of_rounding);
}

std::vector<int> SizesOf(const ModelPlan& plan) {
  std::vector<int> sizes = ShardSizes(plan);
  std::erase(sizes, 1);
  return sizes;
}

class TensorParallelTest : public testing::TestWithParam<std::string> {};

TEST_P(TensorParallelTest, LogitsAreThoseOfOneRank) {
  const TestModel model(GetParam());
  const std::vector<int32_t> ids = RandomTokens(model.plan, 1, kNumTokens);
  const Logits whole = RunInChunks(*model.Executor(1), ids, {kNumTokens});
  const double tolerance = Tolerance(GetParam(), model, ids, whole);
  const std::vector<int> sizes = SizesOf(model.plan);
  ASSERT_GE(sizes.size(), 2u) << "2 and 4 at least";
  for (const int size : sizes) {
    const Logits split = RunInChunks(*model.Executor(size), ids, {7, 1, 30, 2});
    const double difference = Difference(whole, split);
    EXPECT_LE(difference, tolerance) << size << " ranks";
    EXPECT_NE(whole, split) << size << " ranks add the same sums";
    RecordProperty("difference_of_" + std::to_string(size), fmt::format("{:.2e}", difference));
  }
}

TEST_P(TensorParallelTest, ModesHaveTheSameBits) {
  const TestModel model(GetParam());
  const std::vector<int32_t> ids = RandomTokens(model.plan, 2, kNumTokens);
  for (const int size : {2, 4}) {
    const Logits whole = RunInChunks(*model.Executor(size), ids, {kNumTokens});
    const std::string ranks = std::to_string(size) + " ranks, ";
    ExpectSameBits(model.plan, whole, RunInChunks(*model.Executor(size), ids, {1}),
                   ranks + "one token at a time");
    ExpectSameBits(model.plan, whole,
                   RunInChunks(*model.Executor(size, /*num_threads=*/5), ids, {9, 1, 40}),
                   ranks + "five threads, odd chunks");
  }
}

TEST_P(TensorParallelTest, DraftsAreThoseOfOneRank) {
  const TestModel model(GetParam());
  const std::vector<int32_t> ids = RandomTokens(model.plan, 3, 40);
  const auto greedy = std::make_shared<SamplingParams>(SamplingParams{.temperature = 0.0f});
  const auto draft = [&](int num_ranks) {
    const auto executor = model.Executor(num_ranks);
    SingleSequence sequence(*executor, /*max_chunk=*/16, greedy, static_cast<int32_t>(ids.size()));
    EXPECT_TRUE(sequence.AppendAndSample(ids).ok());
    return sequence.DraftRound(4).value();
  };
  const auto whole = draft(1);
  for (const int size : {2, 4}) {
    const auto split = draft(size);
    EXPECT_EQ(whole.draft_ids, split.draft_ids) << size << " ranks";
    EXPECT_LE(Difference(whole.draft_logits, split.draft_logits), kDraftTolerance)
        << size << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TensorParallelTest,
                         testing::Values("e2b", "e4b", "12b", "26b-a4b", "31b", "tiny-e",
                                         "tiny-moe", "tiny-dense", "odd-single-kv", "odd-window",
                                         "odd-wrapper", "odd-shared-kv-is-v", "odd-moe",
                                         "odd-unified"),
                         ModelTestName);

// Widths of a few blocks, which ranks share unevenly: 5 blocks of 256 over 4 of them.
TEST(TensorParallelBlocks, LogitsOfEveryBlockFormatAreThoseOfOneRank) {
  const ModelPlan plan = TestPlan("tiny-moe", {{"hidden_size", 256},
                                               {"intermediate_size", 1280},
                                               {"moe_intermediate_size", 1280},
                                               {"num_experts", 4},
                                               {"top_k_experts", 2}});
  ThreadPool threads(2);
  const std::vector<int32_t> ids = RandomTokens(plan, 1, 30);
  for (const DType dtype : {DType::kQ4_0, DType::kQ8_0, DType::kQ4_K}) {
    const auto source =
        ConvertForCpu(RequiredTensors(plan), DummySource::Make(plan, /*seed=*/3, threads).value(),
                      {.reader = WeightReader::kCpu, .rounding = dtype}, threads)
            .value();
    const auto run = [&](int num_ranks, bool fast_math) {
      const auto executor =
          cpu::CpuExecutor::Create(
              plan, source,
              {.num_threads = 2, .num_ranks = num_ranks, .num_pages = 50, .fast_math = fast_math})
              .value();
      return RunInChunks(*executor, ids, {11, 4});
    };
    const Logits whole = run(1, false);
    for (const int size : {2, 4}) {
      const std::string ranks = fmt::format("{}, {} ranks", DTypeName(dtype), size);
      EXPECT_LE(Difference(whole, run(size, false)), kTolerance) << ranks;
      // Rounded, and near what is not, as far as a random model keeps near what was.
      const Logits fast = run(size, true);
      double squares = 0.0, errors = 0.0;
      for (size_t idx = 0; idx < whole.size(); ++idx) {
        squares += double{whole[idx]} * double{whole[idx]};
        errors += std::pow(double{whole[idx]} - double{fast[idx]}, 2);
      }
      EXPECT_LT(std::sqrt(errors / squares), 0.5) << ranks << ", fast math";
    }
  }
}

TEST(TensorParallelBlocks, AModelThatRanksCannotShareIsRefusedWithTheSizesThatWork) {
  const TestModel model("tiny-dense");
  EXPECT_EQ(cpu::CpuExecutor::Create(model.plan, model.source, {.num_ranks = 3, .num_pages = 10})
                .error()
                .message,
            "the model cannot be split over 3 ranks: its 4 attention heads cannot be shared out "
            "evenly; 1, 2, 4 work");
}

}  // namespace
}  // namespace lapidary
