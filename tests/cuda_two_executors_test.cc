// Two executors on one GPU in one process, each with a thread of its own. The kernel of a one-token
// step needs every SM (device/device_turn.h): without turns two of them wait for each other.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <iostream>
#include <thread>

#include "engine/single_sequence.h"
#include "executor/cuda/cuda_executor.h"
#include "ops/cuda/test_buffer.h"
#include "tests/step_testing.h"
#include "tests/test_models.h"

namespace lapidary {
namespace {

constexpr int kLogitSteps = 200;    // launched kernel by kernel
constexpr int kSampledSteps = 600;  // replayed as a graph
constexpr std::chrono::seconds kPatience(60);

// So wide that a step has a block on every SM.
ModelPlan WidePlan(const std::string& preset, int hidden) {
  return TestPlan(preset, {{"hidden_size", hidden}, {"intermediate_size", 1024}});
}

std::unique_ptr<cuda::CudaExecutor> MakeExecutor(const ModelPlan& plan) {
  cuda::CudaExecutorOptions options;
  options.num_pages = 400;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 64;
  auto executor = cuda::CudaExecutor::Create(plan, nullptr, options);
  CHECK(executor.ok()) << executor.error().message;
  return std::move(executor).value();
}

struct Generated {
  Logits logits;
  std::vector<int32_t> tokens;
};

// One token at a time, from the first on.
Generated Generate(Executor& executor) {
  auto greedy = std::make_shared<SamplingParams>();
  greedy->temperature = 0.0f;
  SingleSequence sequence(executor, /*max_chunk=*/1, greedy, /*prompt_len=*/kLogitSteps);
  Generated generated;
  const Status status = sequence.Append(
      RandomTokens(executor.plan(), 5, kLogitSteps), [&](std::span<const float> rows) -> Status {
        generated.logits.insert(generated.logits.end(), rows.begin(), rows.end());
        return {};
      });
  CHECK(status.ok()) << status.error().message;
  int32_t next = 7;
  for (int step = 0; step < kSampledSteps; ++step) {
    const auto token = sequence.AppendAndSample(std::span(&next, 1));
    CHECK(token.ok()) << token.error().message;
    next = token->id;
    generated.tokens.push_back(next);
  }
  return generated;
}

// On a thread of its own; one that does not come back is not waited for.
std::future<Generated> Start(Executor& executor) {
  std::packaged_task<Generated()> task([&] { return Generate(executor); });
  std::future<Generated> result = task.get_future();
  std::thread(std::move(task)).detach();
  return result;
}

void Await(const std::future<Generated>& result) {
  if (result.wait_for(kPatience) == std::future_status::ready) return;
  std::cerr << "steps have not ended for a minute: executors wait for each other" << std::endl;
  std::_Exit(1);  // What runs on the GPU cannot be taken back.
}
Generated Finish(std::future<Generated> result) {
  Await(result);
  return result.get();
}

void ExpectSame(const ModelPlan& plan, const Generated& alone, const Generated& beside) {
  ExpectSameBits(plan, alone.logits, beside.logits, "beside another executor");
  EXPECT_EQ(alone.tokens, beside.tokens);
}

TEST(CudaTwoExecutorsTest, OneTokenStepsAtOnceGiveWhatEachGivesAlone) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  const ModelPlan first_plan = WidePlan("tiny-e", 1536);
  const ModelPlan second_plan = WidePlan("tiny-dense", 2560);
  const auto first = MakeExecutor(first_plan);
  const auto second = MakeExecutor(second_plan);
  const Generated first_alone = Finish(Start(*first));
  const Generated second_alone = Finish(Start(*second));
  for (int round = 0; round < 3; ++round) {
    std::future<Generated> one = Start(*first);
    std::future<Generated> other = Start(*second);
    Await(one);
    Await(other);
    ExpectSame(first_plan, first_alone, one.get());
    ExpectSame(second_plan, second_alone, other.get());
  }
}

// An executor comes and goes while another one works.
TEST(CudaTwoExecutorsTest, OneMayBeMadeAndDestroyedWhileAnotherRuns) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  const ModelPlan plan = WidePlan("tiny-dense", 1536);
  const auto lasting = MakeExecutor(plan);
  const Generated expected = Finish(Start(*lasting));
  std::future<Generated> running = Start(*lasting);
  for (int round = 0; round < 3; ++round) {
    const auto passing = MakeExecutor(plan);
    ExpectSame(plan, expected, Finish(Start(*passing)));
  }
  ExpectSame(plan, expected, Finish(std::move(running)));
}

}  // namespace
}  // namespace lapidary
