// How often each expert was chosen, as executors count it for metrics.
#include "model/expert_counts.h"

#include <gtest/gtest.h>

#include "executor/cpu/cpu_executor.h"
#include "model/tensor_sources.h"
#include "tests/step_testing.h"
#include "tests/test_models.h"

namespace lapidary {
namespace {

uint64_t SumOfLayer(const ExpertCounts& counts, int layer) {
  uint64_t sum = 0;
  for (int expert = 0; expert < counts.num_experts(); ++expert) sum += counts.Get(layer, expert);
  return sum;
}

class ExpertCountsTest : public testing::Test {
 protected:
  void Run(const std::vector<int>& chunks) {
    ThreadPool threads(2);
    cpu::CpuExecutorOptions options;
    options.num_threads = 2;
    options.num_pages = 100;
    options.skip_unneeded_rows = false;
    options.expert_counts = counts_;
    auto executor = cpu::CpuExecutor::Create(
                        plan_, DummySource::Make(plan_, /*seed=*/3, threads).value(), options)
                        .value();
    RunInChunks(*executor, RandomTokens(plan_, /*seed=*/1, kTokens), chunks);
  }

  static constexpr int kTokens = 23;
  const ModelPlan plan_ = TestPlan("tiny-moe", Json::object());
  std::shared_ptr<ExpertCounts> counts_ = std::make_shared<ExpertCounts>();
};

TEST_F(ExpertCountsTest, EveryRowCountsOnceForEachOfItsExperts) {
  Run({kTokens});
  ASSERT_EQ(counts_->num_layers(), plan_.num_layers);
  ASSERT_EQ(counts_->num_experts(), plan_.moe->num_experts);
  for (int layer = 0; layer < plan_.num_layers; ++layer) {
    EXPECT_EQ(SumOfLayer(*counts_, layer), uint64_t{kTokens} * plan_.moe->top_k) << layer;
    for (int expert = 0; expert < plan_.moe->num_experts; ++expert) {
      EXPECT_LE(counts_->Get(layer, expert), uint64_t{kTokens});
    }
  }
}

TEST_F(ExpertCountsTest, AreTheSameHoweverAPromptIsCut) {
  Run({kTokens});
  const std::shared_ptr<ExpertCounts> at_once = counts_;
  counts_ = std::make_shared<ExpertCounts>();
  Run({5, 1, 3});
  for (int layer = 0; layer < plan_.num_layers; ++layer) {
    for (int expert = 0; expert < plan_.moe->num_experts; ++expert) {
      EXPECT_EQ(counts_->Get(layer, expert), at_once->Get(layer, expert)) << layer << " " << expert;
    }
  }
}

}  // namespace
}  // namespace lapidary
