#include "load/load_model.h"

#include <gtest/gtest.h>

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
  const KvLayout layout = MakeKvLayout(Tiny().plan, in_bytes.device.kind);
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

TEST(LoadModel, AModelMayBeQuantisedAsItIsLoadedButForTheCpuAlone) {
  LoadOptions options = Dummy();
  options.max_tokens = 8;
  options.quantisation = DType::kQ8_0;
  const auto model = LoadModel(Tiny(), options);
  ASSERT_TRUE(model.ok()) << model.error().message;
  options.device.kind = DeviceKind::kCuda;
  const auto on_gpu = LoadModel(Tiny(), options);
  ASSERT_FALSE(on_gpu.ok());
  EXPECT_NE(on_gpu.error().message.find("--quantization Q8_0"), std::string::npos);
}

}  // namespace
}  // namespace lapidary
