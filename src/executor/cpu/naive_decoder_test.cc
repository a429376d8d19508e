// The CPU executor against the specification written down once more, on small models of every kind.
//
// The norms' eps is as large as what it is added to. With the published 1e-6 the next norm cancels
// several factors (of the per-layer inputs, of the routing weights) and no logit would show that
// one is missing; here each does, and the last test proves it by making each mistake on purpose.
#include "executor/cpu/naive_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "executor/cpu/cpu_executor.h"
#include "model/presets.h"
#include "model/tensor_sources.h"

namespace lapidary::cpu {
namespace {

using Vec = NaiveDecoder::Vec;

struct Model {
  ModelPlan plan;
  std::shared_ptr<const TensorSource> source;
  NaiveTensors tensors;
};

Model MakeModel(const std::string& preset) {
  Json config = *PresetConfig(preset);
  config["head_dim"] = 16;
  config["global_head_dim"] = 32;
  config["sliding_window"] = 7;
  config["vocab_size"] = 64;
  config["vocab_size_per_layer_input"] = 64;
  config["rms_norm_eps"] = 0.3;
  Model model{MakeModelPlan(ParseModelConfig(config, preset).value()).value(), nullptr, {}};
  ThreadPool threads(1);
  model.source = DummySource::Make(model.plan, 11, threads).value();
  model.tensors = LoadNaiveTensors(RequiredTensors(model.plan), *model.source);
  return model;
}

std::vector<int32_t> Tokens() {
  std::vector<int32_t> tokens;
  for (int idx = 0; idx < 20; ++idx) tokens.push_back((idx * 37 + 5) % 64);
  return tokens;
}

// Logits of every position, from steps of `chunk` rows.
std::vector<float> RunExecutor(const Model& model, const std::vector<int32_t>& tokens,
                               int32_t chunk) {
  const KvLayout layout = MakeKvLayout(model.plan, KvFormat::kF32, {4, 8});
  auto executor = CpuExecutor::Create(model.plan, model.source,
                                      {.num_threads = 2, .num_pages = 64, .kv_layout = layout})
                      .value();
  executor->kv_memory_for_test().Poison(layout, kScratchPage);
  PagePool pool(64);
  SequencePages pages(model.plan, layout, pool);
  std::vector<float> logits;
  while (pages.length() < static_cast<int32_t>(tokens.size())) {
    const int32_t rows = std::min<int32_t>(chunk, tokens.size() - pages.length());
    EXPECT_TRUE(pages.Reserve(rows));
    SequenceStep step;
    step.num_cached = pages.length();
    step.num_rows = rows;
    step.num_outputs = rows;
    StepBatch batch;
    pages.TakeTableChanges(step.slot, batch.table_entries);
    batch.token_ids.assign(tokens.begin() + pages.length(), tokens.begin() + pages.length() + rows);
    batch.sequences.push_back(step);
    batch.return_logits = true;
    const StepOutput output = executor->Run(std::move(batch));
    logits.insert(logits.end(), output.logits.begin(), output.logits.end());
    pages.Commit(rows);
  }
  return logits;
}

// Largest difference as a share of the largest logit.
double Distance(const std::vector<Vec>& expected, const std::vector<float>& logits) {
  double difference = 0, largest = 0;
  size_t at = 0;
  for (const Vec& row : expected) {
    for (const double value : row) {
      difference = std::max(difference, std::abs(value - double{logits[at++]}));
      largest = std::max(largest, std::abs(value));
    }
  }
  EXPECT_EQ(at, logits.size());
  return difference / largest;
}

// Every value is the end of some hundred f32 operations per layer, each good to 2^-24 = 6e-8, in at
// most nine layers.
constexpr double kAgreement = 9 * 100 * 0x1p-24;

constexpr const char* kModels[] = {"tiny-e", "tiny-moe", "tiny-dense"};

TEST(NaiveDecoder, AgreesWithTheExecutorForEveryKindOfModelAndChunk) {
  for (const char* preset : kModels) {
    const Model model = MakeModel(preset);
    const std::vector<Vec> expected = NaiveDecoder(model.plan, model.tensors).Run(Tokens());
    for (const int32_t chunk : {1, 3, 20}) {
      EXPECT_LT(Distance(expected, RunExecutor(model, Tokens(), chunk)), kAgreement)
          << preset << " in chunks of " << chunk;
    }
  }
}

TEST(NaiveDecoder, EveryMistakeShowsInTheLogits) {
  std::map<std::string, std::vector<Mistake>> mistakes = {
      {"tiny-e", {Mistake::kGeluByErf, Mistake::kPleNormOverWholeRow}},
      {"tiny-moe",
       {Mistake::kNoValueNorm, Mistake::kNormAfterRope, Mistake::kMoeNoRenormalisation,
        Mistake::kMoeScaleBeforeRenormalisation, Mistake::kMoeNoPerExpertScale,
        Mistake::kMoeNoRouterRootScale, Mistake::kMoeRouterReadsNormed, Mistake::kMoeGateUpSwapped,
        Mistake::kMoeDenseAndExpertNormsSwapped}},
      {"tiny-dense", {Mistake::kNoValueNorm, Mistake::kRopeDenominatorIsRotaryDims}}};
  for (auto& [preset, wrongs] : mistakes) {
    const Model model = MakeModel(preset);
    if (preset == "tiny-e") {
      const std::vector<Mistake> common = CommonMistakes(model.plan);
      wrongs.insert(wrongs.end(), common.begin(), common.end());
    }
    const std::vector<float> logits = RunExecutor(model, Tokens(), 20);
    for (const Mistake mistake : wrongs) {
      const std::vector<Vec> wrong = NaiveDecoder(model.plan, model.tensors, mistake).Run(Tokens());
      EXPECT_GT(Distance(wrong, logits), 10 * kAgreement)
          << preset << " with mistake " << static_cast<int>(mistake);
    }
  }
}

TEST(CpuExecutor, TakesEmptyBatchesAndSequencesWithoutOutput) {
  const Model model = MakeModel("tiny-e");
  const KvLayout layout = MakeKvLayout(model.plan, KvFormat::kF32, {4, 8});
  auto executor = CpuExecutor::Create(model.plan, model.source,
                                      {.num_threads = 1, .num_pages = 64, .kv_layout = layout})
                      .value();
  EXPECT_TRUE(executor->Run({}).sequences.empty());
  PagePool pool(64);
  SequencePages pages(model.plan, layout, pool);
  ASSERT_TRUE(pages.Reserve(5));
  StepBatch batch;
  batch.return_logits = true;
  batch.sequences.resize(2);  // one without rows, one without output
  batch.token_ids = {1, 2, 3, 4, 5};
  batch.sequences[1].slot = 1;
  batch.sequences[1].num_rows = 5;
  pages.TakeTableChanges(/*slot=*/1, batch.table_entries);
  const StepOutput output = executor->Run(std::move(batch));
  EXPECT_EQ(output.sequences.size(), 2u);
  EXPECT_TRUE(output.logits.empty());
}

TEST(CpuExecutor, RefusesAPoolWithoutPages) {
  const Model model = MakeModel("tiny-dense");
  for (const int num_pages : {-1, 0, 1}) {
    CpuExecutorOptions options;
    options.num_pages = num_pages;
    const auto executor = CpuExecutor::Create(model.plan, model.source, options);
    ASSERT_FALSE(executor.ok());
    EXPECT_NE(executor.error().message.find("holds nothing"), std::string::npos);
  }
}

}  // namespace
}  // namespace lapidary::cpu
