// One-token steps as one kernel, at the dimensions of the real models (dummy weights, made on the
// device): against the same steps kernel by kernel.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "executor/cuda/cuda_executor.h"
#include "load/model_directory.h"
#include "ops/cuda/test_buffer.h"
#include "tests/step_testing.h"
#include "tests/test_models.h"

namespace lapidary {
namespace {

constexpr int kPrompt = 1100;       // beyond every window
constexpr int kLongPrompt = 6000;   // more keys than the blocks take in one round
constexpr int kPromptChunk = 2000;  // of a step
constexpr int kSteps = 6;

double Distance(std::span<const float> actual, std::span<const float> expected) {
  double error = 0.0;
  double norm = 0.0;
  for (size_t idx = 0; idx < expected.size(); ++idx) {
    error += std::pow(double{actual[idx]} - expected[idx], 2);
    norm += std::pow(double{expected[idx]}, 2);
  }
  return std::sqrt(error / norm);
}

class CudaResidentStepTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    LAPIDARY_SKIP_WITHOUT_GPU();
    plan_ = DescribeModel(GetParam()).value().plan;
    // With experts a rounding may choose another one, which moves logits by more than all others.
    // So all are chosen, in the order of their weights, of layers as wide as the model's.
    if (plan_.moe) {
      plan_ = TestPlan(GetParam(), {{"num_hidden_layers", 2},
                                    {"layer_types", {"sliding_attention", "full_attention"}},
                                    {"num_experts", 8},
                                    {"top_k_experts", 8}});
    }
  }

  // Logits of kSteps tokens, one at a time, behind `cached` ones.
  Logits Run(int cached, cuda::CudaExecutorOptions options = {}) const {
    options.num_pages = 1000;
    options.max_num_seqs = 4;
    options.max_num_batched_tokens = kPromptChunk;
    auto executor = cuda::CudaExecutor::Create(plan_, nullptr, options);
    CHECK(executor.ok()) << executor.error().message;
    (*executor)->PoisonPoolForTest();
    const std::vector<int32_t> ids = RandomTokens(plan_, 7, cached + kSteps);
    PagePool pool((*executor)->num_pages());
    SequencePages pages(plan_, (*executor)->kv_layout(), pool);
    Logits logits;
    for (int done = 0; done < cached + kSteps;) {
      const int count = done < cached ? std::min(kPromptChunk, cached - done) : 1;
      StepBatch batch;
      batch.return_logits = true;
      AddStep(pages, std::span(ids).subspan(done, count), 1, 0, batch);
      pages.Commit(count);
      const StepOutput output = (*executor)->Run(std::move(batch));
      if (done >= cached) {
        logits.insert(logits.end(), output.logits.begin(), output.logits.end());
      }
      done += count;
    }
    return logits;
  }

  ModelPlan plan_;
};

// Random weights pass a small error on from layer to layer: how far bf16 arithmetic may go is seen
// from the same steps with batch-invariant kernels, whose sums have yet another order.
TEST_P(CudaResidentStepTest, GivesTheLogitsOfTheStepKernelByKernel) {
  for (const int cached : {0, 63, kPrompt, kLongPrompt}) {
    const Logits expected = Run(cached, {.resident_steps = false});
    const Logits other = Run(cached, {.batch_invariant = true});
    const Logits actual = Run(cached);
    ASSERT_EQ(actual.size(), expected.size());
    for (int step = 0; step < kSteps; ++step) {
      const auto row = [&](const Logits& logits) {
        return std::span(logits).subspan(size_t(step) * plan_.vocab_size, plan_.vocab_size);
      };
      const double distance = Distance(row(actual), row(expected));
      const double noise = Distance(row(other), row(expected));
      EXPECT_LT(distance, 2.0 * noise) << cached << " tokens before, step " << step;
      EXPECT_GT(noise, 0.0);
      EXPECT_LT(noise, 0.6);  // Logits that have nothing in common are 1.4 apart.
    }
  }
}

// Batch-invariant kernels round tiled weights to bf16, so they are further away.
TEST_P(CudaResidentStepTest, GivesTheLogitsOfTheStepKernelByKernelOfTiledWeights) {
  for (const DType quantisation : {DType::kQ4_0, DType::kQ8_0}) {
    for (const int cached : {63, kPrompt}) {
      const Logits expected = Run(cached, {.quantisation = quantisation, .resident_steps = false});
      const Logits other = Run(cached, {.quantisation = quantisation, .batch_invariant = true});
      const Logits actual = Run(cached, {.quantisation = quantisation});
      for (int step = 0; step < kSteps; ++step) {
        const auto row = [&](const Logits& logits) {
          return std::span(logits).subspan(size_t(step) * plan_.vocab_size, plan_.vocab_size);
        };
        EXPECT_LT(Distance(row(actual), row(expected)), 2.0 * Distance(row(other), row(expected)))
            << DTypeName(quantisation) << " " << cached << " tokens before, step " << step;
      }
    }
  }
}

TEST_P(CudaResidentStepTest, GivesTheSameBitsEachTime) {
  ExpectSameBits(plan_, Run(kPrompt), Run(kPrompt), "again");
}

// No kernels but those of one-token steps: `gpu_check` runs it under memcheck.
TEST_P(CudaResidentStepTest, GivesTheSameBitsFromTheFirstTokenOn) {
  ExpectSameBits(plan_, Run(0), Run(0), "again");
}

INSTANTIATE_TEST_SUITE_P(Models, CudaResidentStepTest,
                         testing::Values("e2b", "e4b", "12b", "26b-a4b", "31b"), ModelTestName);

}  // namespace
}  // namespace lapidary
