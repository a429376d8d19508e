// Drafting changes speed and nothing else: the same tokens and logprobs, bit for bit, with drafts
// and without, however they are batched, cut, cached, preempted, copied or aborted.
#include "tests/drafted_answers.h"

namespace lapidary {
namespace {

class DraftingTest : public DraftedAnswersTest {
 protected:
  DraftingTest() : DraftedAnswersTest({}) {}
};

TEST_P(DraftingTest, AnswersAreTheSameBitsInEveryMode) { ExpectTheSameInEveryMode(); }

TEST_P(DraftingTest, AnswersBehindImagesAreTheSameWithDrafts) { ExpectTheSameBehindImages(); }

TEST_P(DraftingTest, RequestsThatFailInAStepLeaveTheOthersAlone) {
  ExpectFailuresLeaveOthersAlone();
}

TEST_P(DraftingTest, CopiesOfAPromptAreTheSame) {
  std::vector<SequenceSpec> specs = Specs();
  specs.resize(4);
  const std::vector<Answer> expected = Run(*Load({.name = "plain"}), specs, /*num_copies=*/3);
  const auto engine = Load({.name = "drafted", .num_drafts = 3, .prefix_caching = true});
  ExpectSame(expected, Run(*engine, specs, /*num_copies=*/3), "three copies");
}

TEST_P(DraftingTest, AbortsLeaveTheOthersAlone) {
  const std::vector<SequenceSpec> specs = Specs();
  const std::vector<Answer> expected = Run(*Load({.name = "plain"}), specs);
  const auto engine = Load({.name = "drafted", .num_drafts = 3});
  // Each stranger is cancelled at its third event.
  for (int idx = 0; idx < 6; ++idx) {
    SequenceSpec stranger = specs[idx];
    stranger.max_new_tokens = 300;
    stranger.stop_ids.clear();
    auto num_events = std::make_shared<int>(0);
    const auto id = engine->Submit(stranger, [num_events, &engine](const RequestEvent& event) {
      if (++*num_events == 3 && !event.finish) engine->Cancel(event.id);
    });
    ASSERT_TRUE(id.ok());
  }
  ExpectSame(expected, Run(*engine, specs), "beside aborted ones");
  EXPECT_EQ(engine->stats().scheduler.num_pages_in_use[kFullGroup], 0);
}

// On tiles where the machine has them (ops/cpu/linear_tiles.h), as without the flag elsewhere.
class FastMathDraftingTest : public DraftedAnswersTest {
 protected:
  FastMathDraftingTest() : DraftedAnswersTest({}, /*fast_math=*/true) {}
};

TEST_P(FastMathDraftingTest, AnswersAreTheSameBitsInEveryMode) { ExpectTheSameInEveryMode(); }

// What the drafter reads are the target's entries in their format, scales and all.
class Int8CacheDraftingTest : public DraftedAnswersTest {
 protected:
  Int8CacheDraftingTest() : DraftedAnswersTest({}, false, 1, KvFormat::kInt8) {}
};

TEST_P(Int8CacheDraftingTest, AnswersAreTheSameBitsInEveryMode) { ExpectTheSameInEveryMode(); }

TEST_P(Int8CacheDraftingTest, AnswersBehindImagesAreTheSameWithDrafts) {
  ExpectTheSameBehindImages();
}

INSTANTIATE_TEST_SUITE_P(Models, Int8CacheDraftingTest,
                         testing::Values("pebble-e", "pebble-moe", "odd-shared-kv-is-v"),
                         ModelTestName);

class Fp8CacheOnTwoRanksTest : public DraftedAnswersTest {
 protected:
  Fp8CacheOnTwoRanksTest() : DraftedAnswersTest({}, false, 2, KvFormat::kFp8) {}
};

TEST_P(Fp8CacheOnTwoRanksTest, AnswersAreTheSameBitsInEveryMode) { ExpectTheSameInEveryMode(); }

INSTANTIATE_TEST_SUITE_P(Models, Fp8CacheOnTwoRanksTest, testing::Values("pebble-dense"),
                         ModelTestName);

INSTANTIATE_TEST_SUITE_P(Models, FastMathDraftingTest,
                         testing::Values("pebble-e", "pebble-moe", "tiny-e"), ModelTestName);

INSTANTIATE_TEST_SUITE_P(Models, DraftingTest,
                         testing::Values("pebble-e", "pebble-moe", "pebble-dense", "tiny-e",
                                         "odd-shared-kv-is-v", "odd-window", "odd-unified"),
                         ModelTestName);

}  // namespace
}  // namespace lapidary
