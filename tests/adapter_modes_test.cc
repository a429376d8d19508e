// Several LoRA adapters and the model alone in one batch: each gives the bits that it gives alone,
// with drafts, chunks, preemption and the prefix cache.
#include "adapter/adapter.h"
#include "adapter/adapter_file.h"
#include "tests/drafted_answers.h"
#include "tests/step_testing.h"

namespace lapidary {
namespace {

constexpr int kNumAdapters = 8;

// Of every matrix that the model has, of a rank of its own.
std::shared_ptr<const Adapter> MakeAdapter(const ModelPlan& plan, int idx) {
  const int64_t rank = 1 + idx % 5;
  AdapterFile file;
  for (const LayerPlan& layer : plan.layers) {
    const std::string name = "model.layers." + std::to_string(layer.index) + ".";
    const int64_t q_rows = int64_t{layer.num_heads} * layer.head_dim;
    const int64_t kv_rows = int64_t{layer.num_kv_heads} * layer.head_dim;
    file.AddPair(name + "self_attn.q_proj", q_rows, plan.hidden_size, rank);
    file.AddPair(name + "self_attn.k_proj", kv_rows, plan.hidden_size, rank, DType::kBF16);
    if (!layer.k_is_v) file.AddPair(name + "self_attn.v_proj", kv_rows, plan.hidden_size, rank);
    file.AddPair(name + "self_attn.o_proj", plan.hidden_size, q_rows, rank, DType::kF16);
    file.AddPair(name + "mlp.gate_proj", layer.mlp_width, plan.hidden_size, rank);
    file.AddPair(name + "mlp.up_proj", layer.mlp_width, plan.hidden_size, rank);
    file.AddPair(name + "mlp.down_proj", plan.hidden_size, layer.mlp_width, rank);
    if (plan.ple) {
      file.AddPair(name + "per_layer_input_gate", plan.ple->width, plan.hidden_size, rank);
      file.AddPair(name + "per_layer_projection", plan.hidden_size, plan.ple->width, rank);
    }
    if (!layer.has_moe) continue;
    const int64_t experts = plan.moe->num_experts;
    const std::string stem = "base_model.model." + name + "experts";
    file.AddPair(name + "router.proj", experts, plan.hidden_size, rank);
    file.Add(stem + ".base_layer.lora_A.weight", {experts * rank, plan.hidden_size});
    file.Add(stem + ".base_layer.lora_B.weight",
             {int64_t{2} * plan.moe->expert_width, experts * rank});
    file.Add(stem + ".lora_A.weight", {experts * rank, plan.moe->expert_width});
    file.Add(stem + ".lora_B.weight", {plan.hidden_size, experts * rank});
  }
  const std::string config =
      "{\"r\": " + std::to_string(rank) + ", \"lora_alpha\": " + std::to_string(rank) + "}";
  auto adapter = Adapter::Parse(config, file.Bytes(), plan, {.scale = 0.03 * (idx + 1)}, "made");
  CHECK(adapter.ok()) << adapter.error().message;
  return *adapter;
}

class AdapterModesTest : public DraftedAnswersTest {
 protected:
  AdapterModesTest() : DraftedAnswersTest({}) {}

  void SetUp() override {
    DraftedAnswersTest::SetUp();
    const ModelPlan plan = DescribeModel(path_.string())->plan;
    for (int idx = 0; idx < kNumAdapters; ++idx) adapters_.push_back(MakeAdapter(plan, idx));
  }

  // Each with another adapter, the first two with none.
  std::vector<SequenceSpec> AdaptedSpecs() const {
    std::vector<SequenceSpec> specs = Specs();
    for (size_t idx = 2; idx < specs.size(); ++idx) specs[idx].adapter = adapters_[idx - 2];
    return specs;
  }

  // One request at a time.
  std::vector<Answer> Alone(const std::vector<SequenceSpec>& specs) const {
    const auto engine = Load({.name = "alone", .overlap = false});
    std::vector<Answer> answers;
    for (const SequenceSpec& spec : specs) answers.push_back(Run(*engine, {spec})[0]);
    return answers;
  }

  static int NumDifferent(const std::vector<Answer>& a, const std::vector<Answer>& b) {
    int num_different = 0;
    for (size_t idx = 0; idx < a.size(); ++idx) {
      const auto same = [](const SampledToken& x, const SampledToken& y) { return x.id == y.id; };
      num_different += !std::ranges::equal(a[idx].tokens, b[idx].tokens, same);
    }
    return num_different;
  }

  std::vector<std::shared_ptr<const Adapter>> adapters_;
};

TEST_P(AdapterModesTest, EightAdaptersAndTheBaseInOneBatchGiveEachTheBitsItGivesAlone) {
  const std::vector<SequenceSpec> specs = AdaptedSpecs();
  const std::vector<Answer> expected = Alone(specs);
  EXPECT_GE(NumDifferent(expected, Alone(Specs())), kNumAdapters / 2) << "adapters do not show";
  for (const Mode& mode : Modes()) {
    const auto engine = Load(mode);
    ExpectSame(expected, Run(*engine, specs), mode.name);
    if (mode.prefix_caching) ExpectSame(expected, Run(*engine, specs), mode.name + ", again");
    EXPECT_GT(engine->stats().drafts.num_rounds, 0u) << mode.name;
  }
}

TEST_P(AdapterModesTest, OnePromptUnderEveryAdapterSharesNoPrefix) {
  std::vector<SequenceSpec> specs(kNumAdapters + 1, Specs()[7]);
  for (int idx = 0; idx < kNumAdapters; ++idx) specs[idx].adapter = adapters_[idx];
  const std::vector<Answer> expected = Alone(specs);
  // With room for what all of them leave.
  const auto engine = Load(
      {.name = "prefix cache", .num_drafts = 3, .pool_tokens = 1 << 16, .prefix_caching = true});
  for (const bool is_second : {false, true}) {
    std::vector<Answer> answers;
    for (const SequenceSpec& spec : specs) answers.push_back(Run(*engine, {spec})[0]);
    ExpectSame(expected, answers, is_second ? "from the cache" : "first");
    for (const Answer& answer : answers) {
      EXPECT_EQ(answer.usage.cached_tokens > 0, is_second);
    }
  }
  // The same files again are the same adapter; at another scale they are another one.
  SequenceSpec again = specs[3];
  const ModelPlan& plan = engine->plan();
  again.adapter = MakeAdapter(plan, 3);
  ASSERT_NE(again.adapter, specs[3].adapter);
  EXPECT_GT(Run(*engine, {again})[0].usage.cached_tokens, 0);
}

TEST_P(AdapterModesTest, AnAdapterIsGivenUpWithItsLastRequest) {
  const auto engine = Load({.name = "drafted", .num_drafts = 3});
  std::vector<SequenceSpec> specs = AdaptedSpecs();
  const std::weak_ptr<const Adapter> adapter = adapters_[0];
  Run(*engine, specs);
  specs.clear();
  adapters_.clear();
  // Slots are cleared with a later step, at the latest once nothing runs.
  const std::vector<SequenceSpec> other = {Specs()[0]};
  for (int round = 0; round < 100 && !adapter.expired(); ++round) Run(*engine, other);
  EXPECT_TRUE(adapter.expired());
}

INSTANTIATE_TEST_SUITE_P(Models, AdapterModesTest,
                         testing::Values("pebble-e", "tiny-moe", "odd-shared-kv-is-v"),
                         ModelTestName);

// Weights of any kind, and products with rounded rows.
struct Weights {
  std::string model;
  std::optional<DType> type;
  bool fast_math;
};

class AdapterWeightsTest : public testing::TestWithParam<Weights> {};

TEST_P(AdapterWeightsTest, RowsBesideAnAdaptersKeepTheirBits) {
  TemporaryDirectory directory;
  const auto path = MakeTestModel(GetParam().model, {.seed = 5}, directory);
  LoadOptions options;
  options.num_threads = 2;
  options.max_tokens = 512;
  options.num_sequences = 3;
  options.quantisation = GetParam().type;
  options.fast_math = GetParam().fast_math;
  const LoadedModel model = LoadModel(DescribeModel(path.string()).value(), options).value();
  Executor& executor = *model.executor;
  const ModelPlan& plan = model.description.plan;
  const std::shared_ptr<const Adapter> adapters[] = {nullptr, MakeAdapter(plan, 2),
                                                     MakeAdapter(plan, 5)};
  const std::vector<int32_t> ids = RandomTokens(plan, 3, 20);
  const auto run = [&](const std::vector<int>& which) {
    PagePool pool(executor.num_pages());
    std::vector<SequencePages> pages;
    StepBatch batch;
    batch.return_logits = true;
    for (const int idx : which) {
      pages.emplace_back(plan, executor.kv_layout(), pool);
      batch.bindings.push_back({.slot = idx, .adapter = adapters[idx]});
      AddStep(pages.back(), ids, static_cast<int>(ids.size()), idx, batch);
    }
    Logits logits = executor.Run(std::move(batch)).logits;
    for (SequencePages& of_sequence : pages) {
      of_sequence.Commit(static_cast<int32_t>(ids.size()));
      of_sequence.Release();
    }
    return logits;
  };
  Logits alone;
  for (const int idx : {0, 1, 2}) {
    const Logits one = run({idx});
    alone.insert(alone.end(), one.begin(), one.end());
  }
  ExpectSameBits(plan, alone, run({0, 1, 2}), "together");
  EXPECT_NE(run({0}), run({1}));
  EXPECT_NE(run({1}), run({2}));
}

INSTANTIATE_TEST_SUITE_P(Formats, AdapterWeightsTest,
                         testing::Values(Weights{"tiny-e", DType::kQ8_0, false},
                                         Weights{"tiny-e", DType::kQ4_0, true},
                                         Weights{"tiny-moe", DType::kQ8_0, true},
                                         Weights{"tiny-dense", std::nullopt, true}),
                         [](const testing::TestParamInfo<Weights>& weights) {
                           std::string name = weights.param.model;
                           std::replace(name.begin(), name.end(), '-', '_');
                           if (weights.param.type)
                             name += std::string("_") + DTypeName(*weights.param.type);
                           return name + (weights.param.fast_math ? "_fast_math" : "");
                         });

TEST(AdapterRefusals, RanksThatShareAModelTakeNone) {
  TemporaryDirectory directory;
  const auto path = MakeTestModel("tiny-e", {.seed = 5}, directory);
  LoadOptions options;
  options.num_threads = 2;
  options.num_ranks = 2;
  options.max_tokens = 64;
  const LoadedEngine loaded = LoadEngine(DescribeModel(path.string()).value(), options, {}).value();
  SequenceSpec spec;
  spec.prompt = {1, 2, 3};
  spec.sampling = std::make_shared<SamplingParams>();
  spec.adapter = MakeAdapter(loaded.description.plan, 0);
  const auto id = loaded.engine->Submit(spec, [](const RequestEvent&) {});
  ASSERT_FALSE(id.ok());
  EXPECT_NE(id.error().message.find("--tensor-parallel-size 1"), std::string::npos);
}

}  // namespace
}  // namespace lapidary
