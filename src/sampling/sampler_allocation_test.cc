// Counts what the sampler asks of the heap. A program of its own, as it replaces operator new;
// noinline keeps the compiler from pairing the malloc and free within with new and delete outside.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "sampling/sampler.h"

namespace {
std::atomic<int64_t> num_allocations{0};
}  // namespace

[[gnu::noinline]] void* operator new(size_t num_bytes) {
  ++num_allocations;
  if (void* block = std::malloc(num_bytes)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept { std::free(block); }

namespace lapidary {
namespace {

TEST(Sampler, AllocatesNothingOnceUsed) {
  constexpr int32_t kVocab = 20000;
  std::vector<float> row(kVocab);
  for (int32_t id = 0; id < kVocab; ++id) row[id] = static_cast<float>(id * 7919 % 1009) * 0.01f;
  PenaltyState history;
  for (int32_t id = 0; id < 100; ++id) history.AddOutput(id);
  const SamplingParams settings[] = {{.temperature = 0},
                                     {.temperature = 0.7f},
                                     {.top_k = 64, .top_p = 0.95f, .num_logprobs = 20},
                                     {.top_p = 0.95f},
                                     {.top_k = 15000, .min_p = 0.1f},
                                     {.repetition_penalty = 1.2f, .suppress_tokens = {5}}};
  Sampler sampler(kVocab);
  const auto sample_all = [&](uint64_t position) {
    for (const SamplingParams& params : settings) {
      EXPECT_TRUE(sampler.Sample(row, params, history, position).ok());
    }
  };
  sample_all(0);
  const int64_t before = num_allocations;
  for (uint64_t position = 1; position < 20; ++position) sample_all(position);
  EXPECT_EQ(num_allocations - before, 0);
}

}  // namespace
}  // namespace lapidary
