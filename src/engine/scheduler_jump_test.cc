// Tokens that a grammar forces are not sampled; nothing else changes.
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
};

struct Load {
  SchedulerLimits limits = {};
  int num_pages = 512;
  int max_new_tokens = 80;  // more than any answer has
  int num_requests = 12;
  std::vector<int32_t> stop_ids = {kStop};
};

Outcome Serve(const Load& load, bool jumps, bool overlap) {
  Harness harness(load.num_pages, load.limits, overlap);
  const auto records = Records(harness.vocab_size());
  std::mt19937 random(7);
  Outcome outcome;
  harness.on_plan_ = [&](const StepPlan&) { ++outcome.num_steps; };
  for (int idx = 0; idx < load.num_requests; ++idx) {
    SequenceSpec spec =
        Harness::Spec(RandomIds(random, 5 + static_cast<int>(random() % 20), harness.vocab_size()),
                      load.max_new_tokens);
    auto sampling = std::make_shared<SamplingParams>();
    if (!jumps) sampling->num_logprobs = 0;  // which come from sampled rows
    spec.sampling = sampling;
    if (idx % 4 != 3) spec.grammar = records;
    spec.stop_ids = load.stop_ids;
    harness.Add(std::move(spec)).value();
  }
  while (harness.Turn()) harness.scheduler().CheckIntegrity();
  outcome.outputs = harness.outputs_;
  outcome.finished = harness.finished_;
  outcome.num_preemptions = harness.scheduler().stats().num_preemptions;
  return outcome;
}

class SchedulerJumps : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Loop, SchedulerJumps, testing::Bool(),
                         [](const auto& mode) { return mode.param ? "Overlapped" : "Plain"; });

TEST_P(SchedulerJumps, AnswersStayTheSameInFewerSteps) {
  Load load;
  load.num_requests = 3;  // all under the grammar
  const Outcome sampled = Serve(load, /*jumps=*/false, GetParam());
  const Outcome jumped = Serve(load, /*jumps=*/true, GetParam());
  EXPECT_EQ(jumped.outputs, sampled.outputs);
  EXPECT_EQ(jumped.finished, sampled.finished);
  // Of nine letters one is chosen, and behind the third record that another begins; with steps
  // planned ahead one more is sampled each time, and one step waits.
  EXPECT_LT(jumped.num_steps, sampled.num_steps * (GetParam() ? 5 : 3) / 9);
}

TEST_P(SchedulerJumps, AnswersStayTheSameDraftedCutAndPreempted) {
  const Outcome expected = Serve({}, /*jumps=*/false, /*overlap=*/false);
  Load drafted;
  drafted.limits.num_drafts = 3;
  Load cut;
  cut.limits.max_num_batched_tokens = 5;
  Load preempted;
  preempted.num_pages = 40;
  Load uncached;
  uncached.limits.prefix_caching = false;
  for (const Load& load : {Load{}, drafted, cut, preempted, uncached}) {
    const Outcome jumped = Serve(load, /*jumps=*/true, GetParam());
    EXPECT_EQ(jumped.outputs, expected.outputs);
    EXPECT_EQ(jumped.finished, expected.finished);
    if (load.num_pages == preempted.num_pages) {
      EXPECT_GT(jumped.num_preemptions, 0u);
    }
  }
}

TEST_P(SchedulerJumps, AnswersEndWithinForcedTextAsTheyWouldElse) {
  for (int max_new_tokens = 1; max_new_tokens < 14; ++max_new_tokens) {
    Load load;
    load.max_new_tokens = max_new_tokens;
    EXPECT_EQ(Serve(load, true, GetParam()).outputs, Serve(load, false, GetParam()).outputs);
    EXPECT_EQ(Serve(load, true, GetParam()).finished, Serve(load, false, GetParam()).finished);
  }
  for (const char letter : std::string_view("rdof")) {  // first, last, behind a choice
    Load load;
    load.stop_ids = {kStop, Spell(std::string_view(&letter, 1))[0]};
    const Outcome jumped = Serve(load, true, GetParam());
    EXPECT_EQ(jumped.outputs, Serve(load, false, GetParam()).outputs);
    EXPECT_EQ(jumped.finished.at(1), FinishReason::kStop);
  }
}

}  // namespace
}  // namespace lapidary
