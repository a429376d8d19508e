// The same bits in every mode: one token at a time, in chunks, in a batch with strangers, with the
// prefill shortcut and without, on any number of threads and with any page size. All of it holds
// with entries of the KV cache in any format, and with fast_math: weights in bf16 then go through
// tiles where the machine has AMX, and the exact way elsewhere; for weights in blocks see
// block_model_test.
#include <gtest/gtest.h>

#include <iostream>
#include <random>

#include "executor/cpu/cpu_executor.h"
#include "model/tensor_sources.h"
#include "ops/cpu/linear_tiles.h"
#include "tests/step_testing.h"
#include "tests/test_models.h"

namespace lapidary {
namespace {

struct Mode {
  std::string name;
  int num_threads = 2;
  bool skip_unneeded_rows = true;
  std::optional<ThreadPlacement> placement = {};  // goes before the number
  std::array<int, kNumKvGroups> tokens_per_page{16, 64};
};

struct Arithmetic {
  std::string model;
  bool fast_math = false;
  KvFormat kv_format = KvFormat::kF32;
};

class ModeEqualityTest : public testing::TestWithParam<Arithmetic> {
 protected:
  static constexpr int kNumTokens = 70;

  ModeEqualityTest() {
    const std::string& model = GetParam().model;
    plan_ = MakeModelPlan(ParseModelConfig(TestConfig(model), model).value()).value();
    ThreadPool threads(2);
    source_ = DummySource::Make(plan_, /*seed=*/3, threads).value();
  }

  std::unique_ptr<cpu::CpuExecutor> MakeExecutor(const Mode& mode) const {
    return MakeExecutor(mode, GetParam().fast_math);
  }
  std::unique_ptr<cpu::CpuExecutor> MakeExecutor(const Mode& mode, bool fast_math) const {
    cpu::CpuExecutorOptions options;
    options.num_threads = mode.num_threads;
    options.placement = mode.placement;
    options.skip_unneeded_rows = mode.skip_unneeded_rows;
    options.fast_math = fast_math;
    options.num_pages = 400;
    options.kv_layout = MakeKvLayout(plan_, GetParam().kv_format, mode.tokens_per_page);
    auto executor = cpu::CpuExecutor::Create(plan_, source_, options).value();
    // Nothing unwritten may ever count.
    for (PageIndex page = 0; page < options.num_pages; ++page) {
      executor->kv_memory_for_test().Poison(executor->kv_layout(), page);
    }
    return executor;
  }

  std::vector<int32_t> Tokens(int seed, int count) const {
    return RandomTokens(plan_, seed, count);
  }

  Logits RunChunks(const Mode& mode, std::span<const int32_t> ids,
                   const std::vector<int>& chunks) const {
    return RunInChunks(*MakeExecutor(mode), ids, chunks);
  }

  void ExpectSameBits(const Logits& expected, const Logits& actual, const std::string& mode) const {
    lapidary::ExpectSameBits(plan_, expected, actual, mode);
  }

  ModelPlan plan_;
  std::shared_ptr<const TensorSource> source_;
};

TEST_P(ModeEqualityTest, ChunkingDoesNotChangeABit) {
  const std::vector<int32_t> ids = Tokens(1, kNumTokens);
  const Logits whole = RunChunks({.name = "whole"}, ids, {kNumTokens});
  for (const float logit : whole) ASSERT_TRUE(std::isfinite(logit));
  ExpectSameBits(whole, RunChunks({.name = "single"}, ids, {1}), "one token at a time");
  ExpectSameBits(whole, RunChunks({.name = "odd"}, ids, {7, 1, 13, 2}), "odd chunks");
  ExpectSameBits(whole, RunChunks({.name = "long"}, ids, {3, 50}), "a chunk beyond the window");
}

TEST_P(ModeEqualityTest, FastMathIsAnotherWayWhereTheMachineHasTilesAlone) {
  const std::vector<int32_t> ids = Tokens(7, kNumTokens);
  const Logits exact = RunInChunks(*MakeExecutor({.name = "exact"}, false), ids, {kNumTokens});
  const Logits fast = RunInChunks(*MakeExecutor({.name = "fast"}, true), ids, {kNumTokens});
  EXPECT_EQ(exact != fast, cpu::HasTiles());
  if (!cpu::HasTiles()) std::cout << "note: no AMX here, so fast_math was the exact way\n";
}

TEST_P(ModeEqualityTest, ThreadsAndPageSizesDoNotChangeABit) {
  const std::vector<int32_t> ids = Tokens(2, kNumTokens);
  const Logits base = RunChunks({.name = "base"}, ids, {16});
  ExpectSameBits(base, RunChunks({.name = "t1", .num_threads = 1}, ids, {16}), "one thread");
  ExpectSameBits(base, RunChunks({.name = "t5", .num_threads = 5}, ids, {16}), "five threads");
  ExpectSameBits(base, RunChunks({.name = "h5", .num_threads = 5}, ids, {30, 1, 1, 1, 1}),
                 "one token at a time, its heads on threads of their own");
  const ThreadPlacement nodes = {.num_threads = 3, .num_shares = 2, .share_of_thread = {0, 1, 1}};
  ExpectSameBits(base, RunChunks({.name = "n2", .placement = nodes}, ids, {16}),
                 "threads of two nodes");
  ExpectSameBits(base, RunChunks({.name = "p1", .tokens_per_page = {1, 1}}, ids, {16}),
                 "pages of one token");
  ExpectSameBits(base, RunChunks({.name = "p7", .tokens_per_page = {7, 5}}, ids, {16}),
                 "odd pages");
}

TEST_P(ModeEqualityTest, ChunkingDoesNotChangeABitAtHighPositions) {
  const std::vector<int32_t> past = Tokens(5, 128);
  const std::vector<int32_t> ids = Tokens(6, 9);
  std::vector<int32_t> all = past;
  all.insert(all.end(), ids.begin(), ids.end());
  const Logits plain = RunChunks({.name = "plain"}, all, {16});
  const auto at = [&](int32_t position, const std::vector<int>& chunks) {
    return RunAtPosition(*MakeExecutor({.name = ""}), past, position, ids, chunks);
  };
  ExpectSameBits(Logits(plain.end() - 9 * plan_.vocab_size, plain.end()), at(128, {9}),
                 "the computed past itself");
  constexpr int32_t kHigh = 100'032;
  const Logits high = at(kHigh, {9});
  for (const float logit : high) ASSERT_TRUE(std::isfinite(logit));
  ExpectSameBits(high, at(kHigh, {1}), "one token at a time");
  ExpectSameBits(high, at(kHigh, {4, 3}), "odd chunks");
}

TEST_P(ModeEqualityTest, TheShortcutForUnneededRowsDoesNotChangeABit) {
  const std::vector<int32_t> ids = Tokens(3, kNumTokens);
  std::vector<Logits> last_rows;
  for (const bool skip : {true, false}) {
    auto executor = MakeExecutor({.name = "", .skip_unneeded_rows = skip});
    last_rows.push_back(RunWithUnneededRows(*executor, ids));
  }
  ExpectSameBits(last_rows[0], last_rows[1], "shortcut on and off");
}

TEST_P(ModeEqualityTest, ScoresAreTheLogprobsOfEveryRowWhateverTheChunks) {
  const std::vector<int32_t> ids = Tokens(4, kNumTokens);
  const Logits whole = RunChunks({.name = "whole"}, ids, {kNumTokens});
  Sampler sampler(plan_.vocab_size);
  auto executor = MakeExecutor({.name = "scored"});
  PagePool pool(executor->num_pages());
  SequencePages pages(plan_, executor->kv_layout(), pool);
  // A scored chunk, one that is not, one scored from its middle on, and one that samples too.
  const std::vector<std::pair<int, int>> chunks = {{20, 20}, {9, 0}, {25, 11}, {16, 15}};
  int begin = 0;
  for (const auto& [count, num_scores] : chunks) {
    const int end = begin + count;
    const bool samples = end == kNumTokens;
    const int first_score = end - num_scores - (samples ? 1 : 0);
    StepBatch batch;
    batch.return_logits = true;
    if (begin == 0) {
      batch.bindings.push_back(
          {.sampling = std::make_shared<SamplingParams>(), .num_score_top = 2});
    }
    AddStep(pages, std::span(ids).subspan(begin, count), num_scores + (samples ? 1 : 0), /*slot=*/0,
            batch);
    batch.sequences[0].num_scored = num_scores;
    batch.sequences[0].samples = samples;
    batch.scored_ids.assign(ids.begin() + first_score + 1,
                            ids.begin() + first_score + 1 + num_scores);
    const StepOutput output = executor->Run(std::move(batch));
    pages.Commit(count);
    ASSERT_EQ(output.sequences[0].scores.size(), static_cast<size_t>(num_scores));
    EXPECT_EQ(output.sequences[0].tokens.size(), samples ? 1u : 0u);
    for (int idx = 0; idx < num_scores; ++idx) {
      const int row = first_score + idx;
      const SampledToken& score = output.sequences[0].scores[idx];
      const std::span<const float> logits(whole.data() + int64_t{row} * plan_.vocab_size,
                                          static_cast<size_t>(plan_.vocab_size));
      const SampledToken expected = sampler.Score(logits, ids[row + 1], 2).value();
      EXPECT_EQ(score.id, ids[row + 1]);
      EXPECT_EQ(score.logprob, expected.logprob) << "row " << row;
      EXPECT_EQ(score.top[1].id, expected.top[1].id);
      EXPECT_EQ(score.top[1].logprob, expected.top[1].logprob);
    }
    begin = end;
  }
}

TEST_P(ModeEqualityTest, ABatchWithStrangersDoesNotChangeABit) {
  constexpr int kNumSequences = 5;
  std::vector<std::vector<int32_t>> ids;
  std::vector<Logits> alone;
  for (int idx = 0; idx < kNumSequences; ++idx) {
    ids.push_back(Tokens(10 + idx, 20 + 11 * idx));
    alone.push_back(RunChunks({.name = "alone"}, ids[idx], {64}));
  }
  auto executor = MakeExecutor({.name = "batched"});
  PagePool pool(executor->num_pages());
  std::vector<SequencePages> pages;
  for (int idx = 0; idx < kNumSequences; ++idx) {
    pages.emplace_back(plan_, executor->kv_layout(), pool);
  }
  std::vector<Logits> batched(kNumSequences);
  std::mt19937 random(99);
  while (true) {  // Every step takes a random number of rows of some sequences.
    StepBatch batch;
    batch.return_logits = true;
    std::vector<std::pair<int, int>> taken;  // (sequence, rows)
    for (int idx = 0; idx < kNumSequences; ++idx) {
      const int left = static_cast<int>(ids[idx].size()) - pages[idx].length();
      const int count = std::min<int>(left, static_cast<int>(random() % 9));
      if (count == 0) continue;
      AddStep(pages[idx], std::span(ids[idx]).subspan(pages[idx].length(), count), count, idx,
              batch);
      taken.emplace_back(idx, count);
    }
    bool done = true;
    for (int idx = 0; idx < kNumSequences; ++idx) {
      done = done && pages[idx].length() == static_cast<int>(ids[idx].size());
    }
    if (done) break;
    const StepOutput output = executor->Run(std::move(batch));
    const float* next = output.logits.data();
    for (const auto& [idx, count] : taken) {
      const int64_t length = int64_t{count} * plan_.vocab_size;
      batched[idx].insert(batched[idx].end(), next, next + length);
      next += length;
      pages[idx].Commit(count);
    }
  }
  for (int idx = 0; idx < kNumSequences; ++idx) {
    ExpectSameBits(alone[idx], batched[idx], "sequence " + std::to_string(idx));
    pages[idx].Release();
  }
  EXPECT_EQ(pool.num_free(), pool.num_pages() - 1);
}

std::vector<Arithmetic> AllArithmetics() {
  std::vector<Arithmetic> all;
  for (const char* model :
       {"tiny-e", "tiny-moe", "tiny-dense", "odd-window", "odd-shared-kv-is-v", "odd-moe"}) {
    all.push_back({model, false});
    all.push_back({model, true});
  }
  all.push_back({.model = "tiny-e", .kv_format = KvFormat::kInt8});
  all.push_back({.model = "odd-shared-kv-is-v", .kv_format = KvFormat::kFp8});
  all.push_back({.model = "odd-window", .kv_format = KvFormat::kBF16});
  return all;
}

std::string ArithmeticName(const testing::TestParamInfo<Arithmetic>& arithmetic) {
  std::string name = arithmetic.param.model + (arithmetic.param.fast_math ? "_fast_math" : "");
  if (arithmetic.param.kv_format != KvFormat::kF32) {
    name += "_" + KvFormatName(arithmetic.param.kv_format);
  }
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, ModeEqualityTest, testing::ValuesIn(AllArithmetics()),
                         ArithmeticName);

}  // namespace
}  // namespace lapidary
