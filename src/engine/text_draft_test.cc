// Text that is drafted changes the number of steps and nothing else.
#include "engine/scheduler_harness.h"
#include "grammar/matcher.h"

namespace lapidary {
namespace {

constexpr int32_t kStop = 1;
constexpr int32_t kFirstLetter = 10;  // the token of 'a'

std::vector<int32_t> Spell(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char letter : text) ids.push_back(kFirstLetter + letter - 'a');
  return ids;
}

// Three to eight times: a word, a letter that is chosen, another word.
std::shared_ptr<const grammar::CompiledGrammar> Records(int vocab_size) {
  std::vector<std::string> bytes(vocab_size);
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    bytes[kFirstLetter + letter - 'a'] = std::string(1, letter);
  }
  grammar::GrammarBuilder builder;
  const grammar::NodeId chosen =
      builder.Terminal(builder.regex().Bytes(grammar::ByteSet::Range('a', 'f')));
  const grammar::NodeId record =
      builder.Sequence({builder.Text("record"), chosen, builder.Text("of")});
  const grammar::NodeId root = builder.Repeat(record, 3, 8);
  return std::make_shared<grammar::CompiledGrammar>(
      std::move(builder).Finish(root).value(),
      std::make_shared<grammar::TokenVocabulary>(std::move(bytes)), std::vector<int32_t>{kStop},
      grammar::ThoughtLimit{}, grammar::TokenRules{}, Spell);
}

struct Outcome {
  std::map<SequenceId, std::vector<int32_t>> outputs;
  std::map<SequenceId, FinishReason> finished;
  uint64_t num_preemptions = 0;
  int num_steps = 0;
  int num_failures = 0;
  int num_late = 0;
};

struct Load {
  SchedulerLimits limits = {};
  int num_pages = 512;
  int max_new_tokens = 80;  // more than any answer has
  int num_requests = 12;
  int fails_one_in = 0;
  int is_late_one_in = 0;
  std::vector<int32_t> stop_ids = {kStop};
};

Outcome Serve(const Load& load, bool drafts, bool overlap) {
  SchedulerLimits limits = load.limits;
  limits.num_forced_drafts = drafts ? kMaxDrafts : 0;
  Harness harness(load.num_pages, limits, overlap);
  harness.executor().FailOneIn(load.fails_one_in);
  harness.executor().BeLateOneIn(load.is_late_one_in);
  const auto records = Records(harness.vocab_size());
  std::mt19937 random(7);
  Outcome outcome;
  harness.on_plan_ = [&](const StepPlan&) { ++outcome.num_steps; };
  for (int idx = 0; idx < load.num_requests; ++idx) {
    SequenceSpec spec =
        Harness::Spec(RandomIds(random, 5 + static_cast<int>(random() % 20), harness.vocab_size()),
                      load.max_new_tokens);
    if (idx % 4 != 3) spec.grammar = records;
    spec.stop_ids = load.stop_ids;
    harness.Add(std::move(spec)).value();
  }
  while (harness.Turn()) harness.scheduler().CheckIntegrity();
  outcome.outputs = harness.outputs_;
  outcome.finished = harness.finished_;
  outcome.num_preemptions = harness.scheduler().stats().num_preemptions;
  outcome.num_failures = harness.executor().num_failures();
  outcome.num_late = harness.executor().num_late();
  return outcome;
}

class TextDrafts : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Loop, TextDrafts, testing::Bool(),
                         [](const auto& mode) { return mode.param ? "Overlapped" : "Plain"; });

TEST_P(TextDrafts, AnswersStayTheSameInFewerSteps) {
  Load load;
  load.num_requests = 3;  // all under the grammar
  const Outcome sampled = Serve(load, /*drafts=*/false, GetParam());
  const Outcome drafted = Serve(load, /*drafts=*/true, GetParam());
  EXPECT_EQ(drafted.outputs, sampled.outputs);
  EXPECT_EQ(drafted.finished, sampled.finished);
  // Of nine letters one is chosen, and behind the third record that another begins.
  EXPECT_LT(drafted.num_steps, sampled.num_steps * 3 / 9);
}

TEST_P(TextDrafts, AnswersStayTheSameBesideAnAssistantCutAndPreempted) {
  const Outcome expected = Serve({}, /*drafts=*/false, /*overlap=*/false);
  Load assisted;
  assisted.limits.num_drafts = 3;
  Load cut;
  cut.limits.max_num_batched_tokens = 5;
  Load preempted;
  preempted.num_pages = 40;
  Load uncached;
  uncached.limits.prefix_caching = false;
  for (const Load& load : {Load{}, assisted, cut, preempted, uncached}) {
    const Outcome drafted = Serve(load, /*drafts=*/true, GetParam());
    EXPECT_EQ(drafted.outputs, expected.outputs);
    EXPECT_EQ(drafted.finished, expected.finished);
    if (load.num_pages == preempted.num_pages) {
      EXPECT_GT(drafted.num_preemptions, 0u);
    }
  }
}

TEST_P(TextDrafts, AnswersStayTheSameBesideSequencesThatFailOrAreLate) {
  const Outcome expected = Serve({}, /*drafts=*/false, /*overlap=*/false);
  for (const int num_pages : {512, 40}) {
    Load load;
    load.num_pages = num_pages;
    load.fails_one_in = 120;
    load.is_late_one_in = 9;
    load.limits.num_drafts = 2;
    const Outcome drafted = Serve(load, /*drafts=*/true, GetParam());
    EXPECT_GT(drafted.num_failures, 0);
    EXPECT_GT(drafted.num_late, 0);
    for (const auto& [id, finish] : drafted.finished) {
      std::vector<int32_t> whole = expected.outputs.at(id);
      const auto found = drafted.outputs.find(id);
      const std::vector<int32_t> said =
          found != drafted.outputs.end() ? found->second : std::vector<int32_t>();
      if (finish == FinishReason::kError) whole.resize(std::min(whole.size(), said.size()));
      EXPECT_EQ(said, whole) << id;
    }
  }
}

TEST_P(TextDrafts, AnswersEndWithinForcedTextAsTheyWouldElse) {
  for (int max_new_tokens = 1; max_new_tokens < 14; ++max_new_tokens) {
    Load load;
    load.max_new_tokens = max_new_tokens;
    EXPECT_EQ(Serve(load, true, GetParam()).outputs, Serve(load, false, GetParam()).outputs);
    EXPECT_EQ(Serve(load, true, GetParam()).finished, Serve(load, false, GetParam()).finished);
  }
  for (const char letter : std::string_view("rdof")) {  // first, last, behind a choice
    Load load;
    load.stop_ids = {kStop, Spell(std::string_view(&letter, 1))[0]};
    const Outcome drafted = Serve(load, true, GetParam());
    EXPECT_EQ(drafted.outputs, Serve(load, false, GetParam()).outputs);
    EXPECT_EQ(drafted.finished.at(1), FinishReason::kStop);
  }
}

TEST_P(TextDrafts, PromptsKeepTheirRowsBesideManyForms) {
  Load load;
  load.num_requests = 40;
  load.limits.max_num_batched_tokens = 64;
  EXPECT_EQ(Serve(load, true, GetParam()).outputs, Serve(load, false, GetParam()).outputs);
}

}  // namespace
}  // namespace lapidary
