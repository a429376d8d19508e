#include "load/load_model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "checkpoint/safetensors.h"
#include "load/memory_plan.h"
#include "model/presets.h"
#include "model/tensor_sources.h"
#include "tensor/float8.h"

namespace lapidary {
namespace {

ModelDescription Tiny() { return DescribeModel("tiny-e").value(); }

LoadOptions Dummy() {
  LoadOptions options;
  options.format = LoadFormat::kDummy;
  options.num_threads = 1;
  return options;
}

TEST(LoadEngine, TheLimitsOfLoadingAreTheSchedulersToo) {
  LoadOptions options = Dummy();
  options.limits = {.max_num_seqs = 3, .max_num_batched_tokens = 40, .max_model_len = 100};
  EngineOptions engine_options;
  engine_options.max_queue = 7;
  const auto loaded = LoadEngine(Tiny(), options, engine_options);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const SchedulerLimits& limits = loaded->engine->options().limits;
  EXPECT_EQ(limits.max_num_seqs, 3);
  EXPECT_EQ(limits.max_num_batched_tokens, 40);
  EXPECT_EQ(limits.max_model_len, 100);
  EXPECT_EQ(loaded->engine->options().max_queue, 7);
}

TEST(LoadEngine, WithoutASizeTheCpuPoolHoldsEveryRunningContext) {
  LoadOptions options = Dummy();
  options.limits = {.max_num_seqs = 3, .max_num_batched_tokens = 40, .max_model_len = 100};
  const auto loaded = LoadEngine(Tiny(), options, {});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const Engine& engine = *loaded->engine;
  EXPECT_EQ(engine.stats().scheduler.num_pages,
            3 * PagesForSequence(engine.plan(), engine.kv_layout(), 100,
                                 SchedulerLimits{}.sliding_slack));
}

TEST(LoadEngine, ThePoolMayBeGivenInBytesOrInTokens) {
  LoadOptions in_bytes = Dummy();
  const KvLayout layout = MakeKvLayout(Tiny().plan, DefaultKvFormat(in_bytes.device.kind));
  in_bytes.kv_cache_memory_bytes = 10 * layout.page_bytes;
  EXPECT_EQ(LoadEngine(Tiny(), in_bytes, {})->engine->stats().scheduler.num_pages, 9);
  LoadOptions in_tokens = Dummy();
  in_tokens.max_tokens = 64;
  in_tokens.num_sequences = 4;
  EXPECT_EQ(LoadEngine(Tiny(), in_tokens, {})->engine->stats().scheduler.num_pages,
            4 * PagesForSequence(Tiny().plan, layout, 64, SchedulerLimits{}.sliding_slack));
  in_bytes.kv_cache_memory_bytes = layout.page_bytes;  // scratch alone
  EXPECT_FALSE(LoadEngine(Tiny(), in_bytes, {}).ok());
}

TEST(LoadModel, APresetHasNoWeightsOfItsOwn) {
  LoadOptions options = Dummy();
  options.format = LoadFormat::kAuto;
  options.max_tokens = 8;
  const auto model = LoadModel(Tiny(), options);
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.error().message.find("--load-format dummy"), std::string::npos);
}

TEST(LoadModel, SeveralRanksShareAModelOnTheCpuWhereItsHeadsDivide) {
  LoadOptions options = Dummy();
  options.max_tokens = 64;
  options.num_ranks = 2;
  const auto loaded = LoadModel(Tiny(), options);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  // Of two KV heads a rank's pages have one.
  EXPECT_EQ(2 * loaded->executor->kv_layout().page_bytes,
            MakeKvLayout(Tiny().plan, KvFormat::kF32).page_bytes);
  EXPECT_EQ(loaded->executor->plan().vocab_size, Tiny().plan.vocab_size);
  options.num_ranks = 3;
  EXPECT_EQ(
      LoadModel(Tiny(), options).error().message,
      "--tensor-parallel-size 3: the model cannot be split over 3 ranks: its 4 attention heads "
      "cannot be shared out evenly; 1, 2, 4 work");
  options.num_ranks = 2;
  options.device.kind = DeviceKind::kCuda;
  EXPECT_EQ(LoadModel(Tiny(), options).error().message,
            "--tensor-parallel-size 2: a model runs on one GPU; start a server on each, or add "
            "--device cpu");
}

TEST(LoadModel, AModelMayBeQuantisedAsItIsLoadedToWhatTheDeviceHas) {
  LoadOptions options = Dummy();
  options.max_tokens = 8;
  options.quantisation = DType::kQ8_0;
  const auto model = LoadModel(Tiny(), options);
  ASSERT_TRUE(model.ok()) << model.error().message;
  options.device.kind = DeviceKind::kCuda;
  options.quantisation = DType::kQ4_K;
  const auto on_gpu = LoadModel(Tiny(), options);
  ASSERT_FALSE(on_gpu.ok());
  EXPECT_NE(on_gpu.error().message.find("--quantization Q4_K: on the GPU it may be q4_0 or q8_0"),
            std::string::npos)
      << on_gpu.error().message;
}

// A checkpoint of FP8 as compressed-tensors writes it, with one scale for each matrix of a layer.
class Fp8Directory {
 public:
  Fp8Directory()
      : path_(std::filesystem::path(testing::TempDir()) / fmt::format("fp8_{}", getpid())) {
    std::filesystem::create_directories(path_);
    Json config = PresetConfig("tiny-dense").value();
    config["quantization_config"] = {{"quant_method", "compressed-tensors"}};
    std::ofstream(path_ / "config.json") << config.dump();
    const ModelPlan plan = MakeModelPlan(ParseModelConfig(config, "test").value()).value();
    ThreadPool threads(1);
    const auto source = DummySource::Make(plan, 1, threads).value();
    for (const TensorSpec& spec : RequiredTensors(plan)) {
      const TensorView tensor = source->Get(spec).value();
      if (spec.layer < 0 || spec.role != TensorRole::kMatrix) {
        Add(spec.name, tensor.dtype, spec.shape, {tensor.data, tensor.data + tensor.num_bytes()});
        continue;
      }
      std::vector<std::byte> codes;
      for (const float value : ToFloats(tensor)) codes.push_back(std::byte{FloatToFloat8(value)});
      Add(spec.name, DType::kF8E4M3, spec.shape, std::move(codes));
      Add(spec.name + "_scale", DType::kBF16, {1}, {std::byte{0x80}, std::byte{0x3f}});  // 1
    }
    std::ofstream file(path_ / "model.safetensors", std::ios::binary);
    file << MakeSafetensorsHeader(entries_, {});
    file.write(reinterpret_cast<const char*>(bytes_.data()),
               static_cast<std::streamsize>(bytes_.size()));
  }
  ~Fp8Directory() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  void Add(const std::string& name, DType dtype, std::vector<int64_t> shape,
           std::vector<std::byte> data) {
    entries_.push_back(
        {.name = "model.language_model." + name, .dtype = dtype, .shape = std::move(shape)});
    bytes_.insert(bytes_.end(), data.begin(), data.end());
  }

  const std::filesystem::path path_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<std::byte> bytes_;
};

TEST(LoadModel, AQuantisedDirectoryKeepsItsCodesOnTheCpu) {
  const Fp8Directory directory;
  const ModelDescription description = DescribeModel(directory.path()).value();
  ASSERT_TRUE(description.is_compressed());
  LoadOptions options = Dummy();
  options.format = LoadFormat::kAuto;
  options.max_tokens = 8;
  const auto model = LoadModel(description, options);
  ASSERT_TRUE(model.ok()) << model.error().message;
  // A byte a parameter and some for scales, where bf16 takes two.
  const int64_t num_parameters = MakeFootprint(description.plan).total();
  EXPECT_GT(model->weights.total(), num_parameters);
  EXPECT_LT(model->weights.total(), num_parameters + num_parameters / 10);
}

LoadOptions Simulated() {
  LoadOptions options;
  options.device.kind = DeviceKind::kSimulated;
  options.simulation.card = *simulated::FindCard("h200");
  options.simulation.speed = 1000.0;
  return options;
}

TEST(LoadModel, ASimulatedDeviceHasTheCardsPoolAndReadsNoWeights) {
  const ModelDescription description = DescribeModel("31b").value();
  const auto model = LoadModel(description, Simulated());
  ASSERT_TRUE(model.ok()) << model.error().message;
  MemoryRequest request;
  request.memory_bytes = int64_t{143'771} << 20;
  request.num_sms = 132;
  EXPECT_EQ(model->executor->num_pages(), PlanMemory(description.plan, request)->num_pages);
  EXPECT_GT(model->weights.total(), 60'000'000'000);
  EXPECT_FALSE(model->executor->takes_media());
  EXPECT_EQ(model->executor->max_drafts(), 0);
}

TEST(LoadModel, WhatWasNotMeasuredIsNotSimulated) {
  const auto refusal = [](const LoadOptions& options, const char* preset) {
    const auto model = LoadModel(DescribeModel(preset).value(), options);
    return model.ok() ? std::string() : model.error().message;
  };
  LoadOptions quantised = Simulated();
  quantised.quantisation = DType::kQ8_0;
  EXPECT_NE(refusal(quantised, "e2b").find("quantisation cannot be simulated"), std::string::npos);
  LoadOptions drafted = Simulated();
  drafted.drafting.assistant = "e2b";
  EXPECT_NE(refusal(drafted, "e2b").find("speculative decoding"), std::string::npos);
  EXPECT_NE(refusal(Simulated(), "tiny-e").find("only those of e2b"), std::string::npos);
  EXPECT_EQ(refusal(Simulated(), "e2b"), "");
}

}  // namespace
}  // namespace lapidary
