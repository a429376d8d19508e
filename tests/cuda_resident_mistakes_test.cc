// One-token steps as one kernel against the specification: that the kernel makes none of the
// mistakes of tests/resident_mistakes.h.
#include <gtest/gtest.h>

#include <cmath>

#include "device/test_devices.h"
#include "executor/cuda/cuda_executor.h"
#include "executor/cuda/decoder_program.h"
#include "executor/cuda/test_device_weights.h"
#include "ops/cuda/resident/resident_step.h"
#include "ops/cuda/test_buffer.h"
#include "tests/resident_mistakes.h"

namespace lapidary {
namespace {

// Logits of every position, one step each.
Logits RunKernel(const MistakeFinder& finder, const TensorSource& source) {
  cuda::CudaExecutorOptions options;
  options.num_pages = 100;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 64;
  auto executor = cuda::CudaExecutor::Create(finder.plan(), &source, options);
  CHECK(executor.ok()) << executor.error().message;
  (*executor)->PoisonPoolForTest();
  return RunInChunks(**executor, finder.tokens(), {1});
}

class CudaResidentMistakesTest : public testing::TestWithParam<MistakeModel> {};

TEST_P(CudaResidentMistakesTest, TheKernelGoesTheWayOfNoMistake) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  const MistakeFinder finder(GetParam());
  const Logits logits = RunKernel(finder, *finder.source());
  const double rounding = finder.Distance(finder.Run({}, NaiveDecoder::Rounding::kBf16));
  EXPECT_LT(finder.Distance(logits), 1.5 * rounding);
  const std::vector<double> shares = finder.Shares(logits);
  for (size_t idx = 0; idx < shares.size(); ++idx) {
    EXPECT_LT(std::abs(shares[idx]), MistakeFinder::kFound) << finder.mistakes()[idx].Name();
  }
}

TEST_P(CudaResidentMistakesTest, APartThatTheKernelLosesIsFound) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  if (GetParam().is_wide()) GTEST_SKIP() << "the narrow ones show it";
  const MistakeFinder finder(GetParam());
  for (size_t idx = 0; idx < finder.mistakes().size(); ++idx) {
    const PossibleMistake& mistake = finder.mistakes()[idx];
    if (mistake.lost.empty()) continue;
    const Logits logits = RunKernel(finder, *finder.SourceWithout(mistake.lost));
    EXPECT_GT(finder.Shares(logits)[idx], MistakeFinder::kFound) << mistake.Name();
  }
}

// Without this the tests above could be of other kernels.
TEST_P(CudaResidentMistakesTest, TheModelRunsAsOneKernel) {
  const ModelPlan plan = MakeMistakePlan(GetParam());
  const cuda::DeviceWeights weights = cuda::MakeAddressesOfWeights(plan);
  cuda::DecoderInputs inputs;
  inputs.layers = InputsFromOwnKv(plan, weights, MakeKvLayout(plan, KvFormat::kBF16));
  EXPECT_TRUE(
      cuda::ResidentStepSupports(TestH200(), cuda::MakeDecoderProgram(plan, weights, inputs, {})));
}

INSTANTIATE_TEST_SUITE_P(Models, CudaResidentMistakesTest, testing::ValuesIn(MistakeModels()),
                         [](const auto& model) { return model.param.Name(); });

}  // namespace
}  // namespace lapidary
