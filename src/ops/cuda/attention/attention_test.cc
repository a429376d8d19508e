#include "ops/cuda/attention/attention.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ops/cuda/attention/attention_step.h"

namespace lapidary::cuda {
namespace {

std::vector<AttentionSequenceSpec> Decodes(const std::vector<int>& positions) {
  std::vector<AttentionSequenceSpec> sequences;
  for (const int position : positions) sequences.push_back({.first_position = position});
  return sequences;
}

// bf16 weights and a bf16 result: 2^-9 relative each, at random.
constexpr double kTolerance = 7e-3;

class AttentionTest : public testing::Test {
 protected:
  void SetUp() override { LAPIDARY_SKIP_WITHOUT_GPU(); }

  // Runs the step split in several ways; each must agree with the reference.
  static void ExpectMatches(const AttentionStepSpec& spec, const std::string& what) {
    SCOPED_TRACE(what + ", value_len " + std::to_string(spec.entry.value_len) + ", key_len " +
                 std::to_string(spec.entry.key_len) + ", window " +
                 std::to_string(spec.geometry.window) + ", heads " +
                 std::to_string(spec.geometry.num_heads) + "/" +
                 std::to_string(spec.geometry.num_kv_heads) + ", page " +
                 std::to_string(spec.tokens_per_page));
    AttentionStep step(spec);
    EXPECT_LE(step.WorstError(step.Run({})), kTolerance) << "default";
    EXPECT_LE(step.WorstError(step.Run({.work = {.max_partials = 0}})), kTolerance) << "unsplit";
    EXPECT_LE(step.WorstError(step.Run(
                  {.work = {.max_partials = 8192, .min_split_keys = 32}, .num_blocks = 4000})),
              kTolerance)
        << "many splits";
    EXPECT_LE(step.WorstError(step.Run({.work = {.batch_invariant = true, .max_partials = 4096}})),
              kTolerance)
        << "batch-invariant";
    // The kernel of steps without prompts.
    EXPECT_LE(step.WorstError(
                  step.Run({.work = {.max_partials = 4096, .tile_rows = 32, .even_shares = true}})),
              kTolerance)
        << "few rows";
    EXPECT_LE(step.WorstError(step.Run({.work = {.max_partials = 0, .tile_rows = 32}})), kTolerance)
        << "few rows, unsplit";
    EXPECT_LE(step.WorstError(step.Run(
                  {.work = {.max_partials = 1 << 14, .tile_rows = 16, .min_split_keys = 32},
                   .num_blocks = 4000})),
              kTolerance)
        << "few rows, many splits";
  }
};

TEST_F(AttentionTest, DecodesEveryRemainder) {
  for (const KvEntryPlan& entry : kForms) {
    ExpectMatches(
        {.entry = entry,
         .geometry = {.num_heads = 16, .num_kv_heads = 2},
         .tokens_per_page = 16,
         .sequences = Decodes({0,  1,  2,   14,  15,  16,  30,  31,  32,  33,   62,   63,
                               64, 65, 100, 254, 255, 256, 511, 512, 513, 1000, 1023, 1024})},
        "decode");
  }
}

TEST_F(AttentionTest, DecodesLongSequences) {
  for (const KvEntryPlan& entry : kForms) {
    ExpectMatches({.entry = entry,
                   .geometry = {.num_heads = 8, .num_kv_heads = 1},
                   .tokens_per_page = 64,
                   .sequences = Decodes({4999, 2047, 3})},
                  "long decode");
  }
}

TEST_F(AttentionTest, TakesEveryNumberOfHeads) {
  for (const KvEntryPlan& entry : kForms) {
    for (int heads = 1; heads <= 16; ++heads) {
      ExpectMatches({.entry = entry,
                     .geometry = {.num_heads = heads * 2, .num_kv_heads = 2},
                     .tokens_per_page = 7,
                     .sequences = {{.first_position = 77},
                                   {.num_queries = 3, .first_position = 40},
                                   {.num_queries = 37, .first_position = 5}}},
                    "heads");
    }
  }
}

TEST_F(AttentionTest, SeesTheWindowAndNothingElse) {
  for (const KvEntryPlan& entry : kForms) {
    for (const int window : {1, 3, 24, 512, 1024}) {
      for (const int tokens_per_page : {7, 16}) {
        ExpectMatches({.entry = entry,
                       .geometry = {.num_heads = 4, .num_kv_heads = 2, .window = window},
                       .tokens_per_page = tokens_per_page,
                       .sequences = {{.first_position = 0},
                                     {.first_position = window - 1},
                                     {.first_position = window},
                                     {.first_position = 1500},
                                     {.num_queries = 4, .first_position = 1533},
                                     {.num_queries = 70, .first_position = 1700},
                                     {.num_queries = 45, .first_position = 0}}},
                      "window");
      }
    }
  }
}

TEST_F(AttentionTest, RowsOfAnImageSeeEachOtherWithinTheWindowBehindThem) {
  for (const int window : {0, 24, 1024}) {
    for (const int tile_rows : {16, 32, 64, 128}) {
      AttentionStep step(
          {.entry = kSeparate256,
           .geometry = {.num_heads = 4, .num_kv_heads = 2, .window = window},
           .sequences = {
               {.first_position = 40},
               {.num_queries = 300, .first_position = 33, .image_begin = 43, .image_end = 323},
               {.num_queries = 70, .first_position = 1700},
               {.num_queries = 50, .image_begin = 0, .image_end = 50},
               {.num_queries = 1, .image_begin = 0, .image_end = 1}}});
      for (const bool batch_invariant : {false, true}) {
        for (const int max_partials : {0, 4096}) {
          if (batch_invariant && tile_rows > 64) continue;
          EXPECT_LE(step.WorstError(step.Run({.work = {.batch_invariant = batch_invariant,
                                                       .max_partials = max_partials,
                                                       .tile_rows = tile_rows}})),
                    kTolerance)
              << "window " << window << ", tiles of " << tile_rows << " rows";
        }
      }
    }
  }
}

TEST_F(AttentionTest, PrefillsFromTheStartAndBehindAPrefix) {
  for (const KvEntryPlan& entry : kForms) {
    for (const int heads : {2, 4, 8, 16}) {
      ExpectMatches({.entry = entry,
                     .geometry = {.num_heads = heads, .num_kv_heads = 1},
                     .tokens_per_page = 64,
                     .sequences = {{.num_queries = 333},
                                   {.num_queries = 1},
                                   {.num_queries = 100, .first_position = 450},
                                   {.num_queries = 65, .first_position = 1025}}},
                    "prefill");
    }
  }
}

TEST_F(AttentionTest, LongPrefillInAWindow) {
  for (const int tile_rows : {16, 64, 128}) {
    const AttentionStepSpec spec = {
        .entry = kSeparate256,
        .geometry = {.num_heads = 4, .num_kv_heads = 2, .window = 512},
        .tokens_per_page = 16,
        .sequences = {{.num_queries = 1800}, {.num_queries = 600, .first_position = 900}}};
    AttentionStep step(spec);
    EXPECT_LE(step.WorstError(step.Run({.work = {.max_partials = 4096, .tile_rows = tile_rows}})),
              kTolerance);
  }
}

TEST_F(AttentionTest, WideTilesMatch) {
  for (const int window : {0, 24}) {
    const AttentionStepSpec spec = {
        .entry = kSeparate256,
        .geometry = {.num_heads = 8, .num_kv_heads = 2, .window = window},
        .tokens_per_page = 16,
        .sequences = {{.num_queries = 333},
                      {.num_queries = 5, .first_position = 700},
                      {.first_position = 300},
                      {.num_queries = 31, .first_position = 99},
                      {.num_queries = 12, .first_position = 40}}};
    AttentionStep step(spec);
    for (const bool invariant : {false, true}) {
      for (const int max_partials : {0, 4096}) {
        EXPECT_LE(step.WorstError(step.Run({.work = {.batch_invariant = invariant,
                                                     .max_partials = max_partials,
                                                     .tile_rows = 128,
                                                     .min_split_keys = 32}})),
                  kTolerance);
      }
    }
  }
}

TEST_F(AttentionTest, MixesPrefillDecodeAndVerifyRows) {
  for (const KvEntryPlan& entry : kForms) {
    for (const int window : {0, 512}) {
      std::vector<AttentionSequenceSpec> sequences = {
          {.num_queries = 200, .first_position = 100},
          {.num_queries = 1}};  // padding: its own key alone
      for (int idx = 0; idx < 20; ++idx) {
        sequences.push_back({.num_queries = 1 + idx % 5, .first_position = 90 * idx});
      }
      ExpectMatches({.entry = entry,
                     .geometry = {.num_heads = 16, .num_kv_heads = 2, .window = window},
                     .tokens_per_page = 16,
                     .sequences = sequences},
                    "mixed");
    }
  }
}

TEST_F(AttentionTest, KeysMayBeAllCachedOrAllNew) {
  for (const KvEntryPlan& entry : kForms) {
    ExpectMatches({.entry = entry,
                   .geometry = {.num_heads = 8, .num_kv_heads = 2},
                   .tokens_per_page = 16,
                   .sequences = {{.first_position = 130, .num_cached = 131},
                                 {.first_position = 130, .num_cached = 0},
                                 {.num_queries = 5, .first_position = 130, .num_cached = 33},
                                 {.num_queries = 40, .first_position = 60, .num_cached = 100}}},
                  "cached");
  }
}

TEST_F(AttentionTest, HoldsWhenEveryTileMovesTheMaximum) {
  for (const KvEntryPlan& entry : kForms) {
    ExpectMatches(
        {.entry = entry,
         .geometry = {.num_heads = 4, .num_kv_heads = 1},
         .tokens_per_page = 16,
         .sequences = {{.first_position = 1200}, {.num_queries = 90, .first_position = 600}},
         .score_range = 2.0f,
         .rising_scores = true},
        "rising");
  }
}

TEST_F(AttentionTest, HoldsForLargeScores) {
  for (const KvEntryPlan& entry : kForms) {
    ExpectMatches(
        {.entry = entry,
         .geometry = {.num_heads = 4, .num_kv_heads = 1},
         .tokens_per_page = 16,
         .sequences = {{.first_position = 900}, {.num_queries = 90, .first_position = 300}},
         .score_range = 200.0f},
        "large");
  }
}

TEST_F(AttentionTest, ReachesBeyondPosition100000) {
  constexpr int kLastPosition = 262143;  // of the models' contexts
  ExpectMatches({.entry = kSeparate256,
                 .geometry = {.num_heads = 4, .num_kv_heads = 2, .window = 1024},
                 .tokens_per_page = 16,
                 .sequences = {{.first_position = 131071},
                               {.num_queries = 50, .first_position = 200000},
                               {.first_position = kLastPosition}}},
                "far, sliding");
  ExpectMatches({.entry = kShared512,
                 .geometry = {.num_heads = 8, .num_kv_heads = 1},
                 .tokens_per_page = 64,
                 .sequences = {{.num_queries = 2, .first_position = 100100},
                               {.first_position = kLastPosition}}},
                "far, full");
}

TEST_F(AttentionTest, SplitsFromOneToManyAgree) {
  for (const KvEntryPlan& entry : kForms) {
    const AttentionStepSpec spec = {.entry = entry,
                                    .geometry = {.num_heads = 8, .num_kv_heads = 1},
                                    .tokens_per_page = 16,
                                    .sequences = Decodes({2999})};
    AttentionStep step(spec);
    std::vector<int> seen;
    for (const int num_blocks : {1, 2, 3, 7, 20, 50, 94}) {
      for (const int tile_rows : {32, 64}) {
        EXPECT_LE(step.WorstError(step.Run(
                      {.work = {.max_partials = 256, .tile_rows = tile_rows, .min_split_keys = 32},
                       .num_blocks = num_blocks})),
                  kTolerance);
      }
      seen.push_back(step.num_splits());
    }
    EXPECT_EQ(seen.front(), 1);
    EXPECT_GE(seen.back(), 20);
  }
}

TEST_F(AttentionTest, SameItemsSameBits) {
  for (const KvEntryPlan& entry : kForms) {
    const AttentionStepSpec spec = {.entry = entry,
                                    .geometry = {.num_heads = 16, .num_kv_heads = 2},
                                    .tokens_per_page = 16,
                                    .sequences = {{.num_queries = 150, .first_position = 200},
                                                  {.first_position = 2500},
                                                  {.num_queries = 4, .first_position = 1234}}};
    AttentionStep step(spec);
    for (const int tile_rows : {32, 64}) {
      const AttentionWorkOptions work = {
          .max_partials = 4096, .tile_rows = tile_rows, .even_shares = true};
      const auto once = step.Run({.work = work});
      for (int time = 0; time < 5; ++time) EXPECT_EQ(step.Run({.work = work}), once);
      EXPECT_EQ(step.Run({.work = work, .times = 3}), once)
          << "counters or scratch of an earlier run shone through";
      EXPECT_EQ(step.Run({.work = work, .dependent = true, .times = 4}), once);
    }
  }
}

TEST_F(AttentionTest, InvariantRowsDoNotDependOnTheStep) {
  for (const KvEntryPlan& entry : kForms) {
    for (const int window : {0, 100, 1024}) {
      SCOPED_TRACE(testing::Message() << entry.value_len << " " << entry.key_len << " " << window);
      const AttentionGeometry geometry = {.num_heads = 8, .num_kv_heads = 2, .window = window};
      const int64_t row_values = 8 * entry.value_len;
      constexpr int kLength = 1340;
      // All rows at once, in one block's walk over all keys.
      AttentionStep whole({.entry = entry,
                           .geometry = geometry,
                           .tokens_per_page = 16,
                           .sequences = {{.num_queries = kLength, .seed = 99}}});
      const auto expected =
          whole.Run({.work = {.batch_invariant = true, .max_partials = 0}, .num_blocks = 1});
      EXPECT_LE(whole.WorstError(expected), kTolerance);
      const auto expect_rows = [&](const std::vector<uint16_t>& rows, int64_t at, int position,
                                   int count, const std::string& how) {
        for (int row = 0; row < count; ++row) {
          const bool same = std::equal(rows.begin() + (at + row) * row_values,
                                       rows.begin() + (at + row + 1) * row_values,
                                       expected.begin() + (position + row) * row_values);
          ASSERT_TRUE(same) << how << ", position " << position + row;
        }
      };
      const std::vector<int> tile_sizes =
          entry.value_len == 256 ? std::vector<int>{16, 32, 64, 128} : std::vector<int>{16, 32, 64};
      for (const int tile_rows : tile_sizes) {
        expect_rows(
            whole.Run(
                {.work = {.batch_invariant = true, .max_partials = 1 << 15, .tile_rows = tile_rows},
                 .num_blocks = 100000}),
            0, 0, kLength, "split, tiles of " + std::to_string(tile_rows));
      }
      // Chunks, with all sorts of company and of pages.
      for (const auto& [begin, count] : {std::pair{0, 1},
                                         {31, 1},
                                         {64, 40},
                                         {511, 3},
                                         {512, 1},
                                         {1000, 340},
                                         {1339, 1},
                                         {1100, 17}}) {
        for (const int company : {0, 40}) {
          AttentionStepSpec spec = {.entry = entry,
                                    .geometry = geometry,
                                    .tokens_per_page = company == 0 ? 64 : 7,
                                    .sequences = {{.num_queries = 9, .first_position = 700}}};
          for (int idx = 0; idx < company; ++idx) {
            spec.sequences.push_back({.first_position = 50 * idx});
          }
          spec.sequences.push_back({.num_queries = count, .first_position = begin, .seed = 99});
          AttentionStep step(spec);
          for (const int max_partials : {0, 4096}) {
            const auto rows =
                step.Run({.work = {.batch_invariant = true, .max_partials = max_partials}});
            expect_rows(rows, 9 + company, begin, count,
                        "chunk with " + std::to_string(company) + " others");
          }
        }
      }
    }
  }
}

TEST_F(AttentionTest, InvariantRowsDoNotDependOnWhatIsCached) {
  for (const KvEntryPlan& entry : kForms) {
    std::vector<uint16_t> expected;
    for (const int cached : {700, 0, 1, 512, 650}) {
      AttentionStep step(
          {.entry = entry,
           .geometry = {.num_heads = 8, .num_kv_heads = 1},
           .tokens_per_page = 16,
           .sequences = {{.num_queries = 20, .first_position = 700, .num_cached = cached}}});
      const auto rows = step.Run({.work = {.batch_invariant = true, .max_partials = 64}});
      if (expected.empty()) expected = rows;
      EXPECT_EQ(rows, expected) << cached;
    }
  }
}

// A captured launch serves whatever the buffers hold when it is replayed.
TEST_F(AttentionTest, GraphsReplayOtherItems) {
  for (const KvEntryPlan& entry : kForms) {
    const AttentionGeometry geometry = {.num_heads = 8, .num_kv_heads = 2, .window = 0};
    const int kv_heads = geometry.num_kv_heads;
    constexpr int kTokens = 16;
    constexpr int kPages = 200;
    constexpr int kMaxRows = 40;
    constexpr int kMaxItems = 4096;
    constexpr int kTileRows = 32;
    const AttentionWorkOptions work = {
        .num_blocks = AttentionBlocks(TestDevice(), entry, kTileRows, /*batch_invariant=*/false),
        .max_partials = 1024,
        .tile_rows = kTileRows};
    Noise noise(5);
    const auto random = [&](int64_t size, float range) {
      std::vector<uint16_t> values(size);
      for (uint16_t& value : values) value = noise.Next(range);
      return values;
    };
    const int64_t page_values = int64_t{kv_heads} * kTokens * entry.entry_len;
    TestBuffer<uint16_t> pool(random(kPages * page_values, 1.0f));
    TestBuffer<uint16_t> new_entries(random(int64_t{kMaxRows} * kv_heads * entry.entry_len, 1.0f));
    TestBuffer<uint16_t> queries(random(int64_t{kMaxRows} * 8 * entry.key_len, 0.3f));
    std::vector<int32_t> page_list(kPages - 1);
    for (int idx = 0; idx < kPages - 1; ++idx) page_list[idx] = kPages - 1 - idx;
    TestBuffer<int32_t> page_ids(page_list);
    TestBuffer<AttentionSequence> sequences(kMaxRows);
    TestBuffer<AttentionItem> items(kMaxItems);
    TestBuffer<int32_t> num_items(std::vector<int32_t>{0});
    TestBuffer<float> partials(
        AttentionPartialBytes(TestDevice().num_sms, work.max_partials, false) / 4);
    TestBuffer<int32_t> counters(std::vector<int32_t>(work.max_partials, 0));
    TestBuffer<uint16_t> out(int64_t{kMaxRows} * 8 * entry.value_len);
    const AttentionCall call = {.geometry = geometry,
                                .entry = entry,
                                .queries = reinterpret_cast<const bf16*>(queries.get()),
                                .out = reinterpret_cast<bf16*>(out.get()),
                                .pool = reinterpret_cast<const std::byte*>(pool.get()),
                                .page_bytes = page_values * 2,
                                .tokens_per_page = kTokens,
                                .new_entries = reinterpret_cast<const bf16*>(new_entries.get()),
                                .page_ids = page_ids.get(),
                                .sequences = sequences.get(),
                                .items = items.get(),
                                .num_items = num_items.get(),
                                .tile_rows = kTileRows,
                                .partials = partials.get(),
                                .counters = counters.get()};
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    LAPIDARY_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    LAPIDARY_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    RunAttention(TestContext(stream), call);
    RunAttention(TestContext(stream, /*dependent=*/true), call);
    LAPIDARY_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    LAPIDARY_CUDA_CHECK(cudaGraphInstantiate(&replay, graph, 0));

    std::vector<std::vector<uint16_t>> results;
    for (const std::vector<int>& cached :
         {std::vector<int>{100, 7, 900}, {3000}, {0}, {16, 17, 18, 19, 1, 2, 3}}) {
      std::vector<AttentionSequence> step;
      for (int idx = 0; idx < cached.size(); ++idx) {
        step.push_back({.first_query = idx,
                        .num_queries = 1,
                        .first_position = cached[idx],
                        .num_cached = cached[idx],
                        .first_new = idx,
                        .table_base = 0});
      }
      std::vector<AttentionItem> plan;
      PlanAttentionWork(geometry, step, work, plan);
      ASSERT_LE(plan.size(), kMaxItems);
      sequences.Upload(step);
      items.Upload(plan);
      num_items.Upload({static_cast<int32_t>(plan.size())});
      const std::vector<uint16_t> poison(int64_t{kMaxRows} * 8 * entry.value_len, kNan);
      out.Upload(poison);
      RunAttention(TestContext(stream), call);
      LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(stream));
      const auto eager = out.Download();
      out.Upload(poison);
      LAPIDARY_CUDA_CHECK(cudaGraphLaunch(replay, stream));
      LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(stream));
      EXPECT_EQ(out.Download(), eager);
      EXPECT_NE(eager[0], kNan);
      results.push_back(eager);
    }
    EXPECT_NE(results[0], results[1]);
    LAPIDARY_CUDA_CHECK(cudaGraphExecDestroy(replay));
    LAPIDARY_CUDA_CHECK(cudaGraphDestroy(graph));
    LAPIDARY_CUDA_CHECK(cudaStreamDestroy(stream));
  }
}

TEST(AttentionFormTest, OnlyKnownEntriesAreSupported) {
  const auto supports = [](const KvEntryPlan& entry) { return AttentionSupports(entry, 1).ok(); };
  for (const KvEntryPlan& entry : kForms) EXPECT_TRUE(supports(entry));
  EXPECT_FALSE(supports({.value_len = 128, .key_offset = 128, .key_len = 128, .entry_len = 256}));
  EXPECT_FALSE(supports({.value_len = 512, .key_offset = 0, .key_len = 512, .entry_len = 512}));
}

}  // namespace
}  // namespace lapidary::cuda
