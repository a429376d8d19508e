// A model on several ranks behind the engine: the same bits with drafts and without, in chunks,
// from the prefix cache, preempted, under grammars, behind images. The bits of one number of ranks
// differ from another's; what follows from them does not.
#include "tests/drafted_answers.h"

namespace lapidary {
namespace {

class TwoRanksTest : public DraftedAnswersTest {
 protected:
  TwoRanksTest() : DraftedAnswersTest({}, /*fast_math=*/false, /*num_ranks=*/2) {}
};

TEST_P(TwoRanksTest, AnswersAreTheSameBitsInEveryMode) { ExpectTheSameInEveryMode(); }

TEST_P(TwoRanksTest, AnswersBehindImagesAreTheSameWithDrafts) { ExpectTheSameBehindImages(); }

TEST_P(TwoRanksTest, RequestsThatFailInAStepLeaveTheOthersAlone) {
  ExpectFailuresLeaveOthersAlone();
}

INSTANTIATE_TEST_SUITE_P(Models, TwoRanksTest,
                         testing::Values("pebble-e", "pebble-moe", "pebble-dense", "odd-unified"),
                         ModelTestName);

class FourRanksTest : public DraftedAnswersTest {
 protected:
  FourRanksTest() : DraftedAnswersTest({}, /*fast_math=*/false, /*num_ranks=*/4) {}
};

TEST_P(FourRanksTest, AnswersAreTheSameBitsInEveryMode) { ExpectTheSameInEveryMode(); }

INSTANTIATE_TEST_SUITE_P(Models, FourRanksTest,
                         testing::Values("tiny-e", "odd-shared-kv-is-v", "odd-window",
                                         "odd-unified"),
                         ModelTestName);

}  // namespace
}  // namespace lapidary
