#include "engine/scheduler_harness.h"

namespace lapidary {
namespace {

class SchedulerModes : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Loop, SchedulerModes, testing::Bool(),
                         [](const auto& mode) { return mode.param ? "Overlapped" : "Plain"; });

TEST_P(SchedulerModes, ARequestGetsItsContinuationAndEndsByLength) {
  Harness harness(64, {}, GetParam());
  const std::vector<int32_t> prompt = {2, 7, 11, 5};
  const SequenceId id = harness.Add(Harness::Spec(prompt, 50)).value();
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs_[id], FakeExecutor::Continuation(prompt, 50, harness.vocab_size()));
  EXPECT_EQ(harness.finished_.at(id), FinishReason::kLength);
}

TEST_P(SchedulerModes, AStopTokenEndsARequestAndIsTheLastToken) {
  Harness harness(64, {}, GetParam());
  const std::vector<int32_t> prompt = {2, 7, 11, 5};
  const auto expected = FakeExecutor::Continuation(prompt, 20, harness.vocab_size());
  SequenceSpec spec = Harness::Spec(prompt, 50);
  spec.stop_ids = {expected[19]};
  const SequenceId id = harness.Add(spec).value();
  harness.RunToEnd();
  EXPECT_EQ(harness.finished_.at(id), FinishReason::kStop);
  const auto first_stop = std::find(expected.begin(), expected.end(), expected[19]);
  EXPECT_EQ(harness.outputs_[id], std::vector<int32_t>(expected.begin(), first_stop + 1));
}

TEST_P(SchedulerModes, ALowerPriorityIsServedFirst) {
  SchedulerLimits limits;
  limits.max_num_seqs = 2;
  limits.prefix_caching = false;
  Harness harness(24, limits, GetParam());
  std::mt19937 random(1);
  const auto add = [&](int32_t priority, int32_t num_new) {
    SequenceSpec spec = Harness::Spec(RandomIds(random, 12, 500), num_new);
    spec.priority = priority;
    return harness.Add(spec).value();
  };
  const SequenceId late = add(5, 40);
  const SequenceId early = add(-5, 40);
  const SequenceId middle = add(0, 40);
  const SequenceId next = add(0, 40);
  std::vector<SequenceId> ended;
  while (ended.size() < 4) {
    harness.Turn();
    for (const auto& [id, reason] : harness.finished_) {
      if (std::find(ended.begin(), ended.end(), id) == ended.end()) ended.push_back(id);
    }
  }
  EXPECT_EQ(ended.front(), early);
  EXPECT_EQ(ended.back(), late);
  EXPECT_LT(std::find(ended.begin(), ended.end(), middle),
            std::find(ended.begin(), ended.end(), next))
      << "in order of arrival where the priority is the same";
}

TEST_P(SchedulerModes, ALongPromptDoesNotHoldUpOthers) {
  SchedulerLimits limits;
  limits.max_num_batched_tokens = 32;
  Harness harness(512, limits, GetParam());
  std::mt19937 random(1);
  const SequenceId decoding = harness.Add(Harness::Spec(RandomIds(random, 4, 500), 200)).value();
  for (int turn = 0; turn < 3; ++turn) harness.Turn();
  harness.Add(Harness::Spec(RandomIds(random, 1000, 500), 4)).value();
  const size_t before = harness.outputs_[decoding].size();
  for (int turn = 0; turn < 20; ++turn) harness.Turn();
  EXPECT_GE(harness.outputs_[decoding].size(), before + 19);
  EXPECT_LE(harness.largest_step_, 32u);
  harness.RunToEnd();
}

TEST_P(SchedulerModes, WhatCanNeverRunIsRefusedAtOnce) {
  Harness harness(16, {}, GetParam());
  EXPECT_FALSE(harness.Add(Harness::Spec({}, 5)).ok());
  EXPECT_FALSE(harness.Add(Harness::Spec({1, 2}, -1)).ok());
  EXPECT_FALSE(harness.Add(Harness::Spec({1, 99999999}, 5)).ok());
  EXPECT_FALSE(harness.Add(Harness::Spec({1, 2}, 1000)).ok());    // pages
  EXPECT_FALSE(harness.Add(Harness::Spec({1, 2}, 100000)).ok());  // context
  EXPECT_TRUE(harness.Add(Harness::Spec({1, 2}, 5)).ok());
}

TEST_P(SchedulerModes, AnIdenticalPromptIsComputedOnce) {
  Harness harness(256, {}, GetParam());
  std::mt19937 random(2);
  const std::vector<int32_t> prompt = RandomIds(random, 300, 500);
  harness.Add(Harness::Spec(prompt, 5)).value();
  harness.RunToEnd();
  const SequenceId again = harness.Add(Harness::Spec(prompt, 9)).value();
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs_[again], FakeExecutor::Continuation(prompt, 9, harness.vocab_size()));
  EXPECT_EQ(harness.scheduler().stats().num_prefix_hit_tokens, 299u);
}

TEST_P(SchedulerModes, ASequenceThatFitsAloneIsNotStoppedByThePagesItResumedFrom) {
  SchedulerLimits limits;
  limits.max_num_batched_tokens = 9;
  limits.sliding_slack = 20;
  // Just enough pages for one such sequence; the point at 54 claims sliding pages.
  std::mt19937 random(9);
  const std::vector<int32_t> prompt = RandomIds(random, 83, 500);
  SequenceSpec spec = Harness::Spec(prompt, 3);
  spec.cache_points = {54};
  int num_pages = 2;
  while (!Harness(num_pages, limits, GetParam(), {1, 6}).Add(spec).ok()) ++num_pages;
  Harness harness(num_pages, limits, GetParam(), {1, 6});
  for (int round = 0; round < 3; ++round) {
    const SequenceId id = harness.Add(spec).value();
    for (int turn = 0; turn < 1000 && harness.scheduler().has_sequences(); ++turn) harness.Turn();
    ASSERT_FALSE(harness.scheduler().has_sequences()) << "round " << round;
    EXPECT_EQ(harness.outputs_[id], FakeExecutor::Continuation(prompt, 3, harness.vocab_size()));
  }
}

TEST_P(SchedulerModes, EveryPromptTokenButTheFirstIsScoredThoughThePromptIsCached) {
  SchedulerLimits limits;
  limits.max_scored_rows = 16;
  Harness harness(256, limits, GetParam());
  std::mt19937 random(8);
  const std::vector<int32_t> prompt = RandomIds(random, 150, 500);
  harness.Add(Harness::Spec(prompt, 5)).value();
  harness.RunToEnd();
  for (const int max_new_tokens : {0, 1, 7}) {
    SequenceSpec spec = Harness::Spec(prompt, max_new_tokens);
    spec.num_prompt_logprobs = 0;
    const SequenceId id = harness.Add(spec).value();
    harness.RunToEnd();
    EXPECT_EQ(harness.scored_ids_[id], std::vector<int32_t>(prompt.begin() + 1, prompt.end()));
    EXPECT_EQ(harness.scores_[id], FakeExecutor::Scores(prompt));
    EXPECT_EQ(harness.outputs_[id],
              FakeExecutor::Continuation(prompt, max_new_tokens, harness.vocab_size()));
    EXPECT_EQ(harness.finished_.at(id), FinishReason::kLength);
  }
  EXPECT_LE(harness.most_outputs_, 16 + 1);
  EXPECT_EQ(harness.scheduler().stats().num_prefix_hit_tokens, 0u);
}

TEST_P(SchedulerModes, APromptAloneEndsHoweverShortItIs) {
  Harness harness(64, {}, GetParam());
  for (const int num_scores : {-1, 0}) {
    for (const int length : {1, 2, 3}) {
      SequenceSpec spec = Harness::Spec(std::vector<int32_t>(length, 5), 0);
      spec.num_prompt_logprobs = num_scores;
      const SequenceId id = harness.Add(spec).value();
      harness.RunToEnd();
      EXPECT_EQ(harness.finished_.at(id), FinishReason::kLength);
      EXPECT_EQ(harness.scores_[id].size(), num_scores < 0 ? 0u : length - 1u);
      EXPECT_TRUE(harness.outputs_[id].empty());
    }
  }
}

ModelPlan PlanWithImages() {
  ModelPlan plan = TinyPlan();
  plan.images_see_both_ways = true;
  return plan;
}

// An image of `length` tokens after ten of text, and ten behind it.
SequenceSpec SpecWithImage(std::mt19937& random, int32_t length) {
  SequenceSpec spec = Harness::Spec(RandomIds(random, length + 20, 500), 4);
  const SoftTokenRun image{.position = 10, .length = length, .is_image = true, .rows = nullptr};
  spec.media = std::make_shared<SoftTokenRuns>(SoftTokenRuns{image});
  return spec;
}

TEST_P(SchedulerModes, AnImageIsNeverCutAndStepsStayWithinTheExecutorsRows) {
  SchedulerLimits limits;
  limits.max_num_batched_tokens = 32;
  limits.max_step_rows = 50;
  limits.num_drafts = 5;
  Harness harness(1024, limits, GetParam(), {4, 8}, PlanWithImages());
  std::mt19937 random(12);
  std::map<int32_t, int> rows_of_slot;
  int num_images = 0;
  harness.on_plan_ = [&](const StepPlan& plan) {
    for (const SequenceStep& step : plan.batch.sequences) {
      const bool holds_image = step.num_cached <= 10 && step.num_cached + step.num_rows > 10;
      if (rows_of_slot.contains(step.slot) && holds_image) {
        EXPECT_GE(step.num_cached + step.num_rows, 55);
        ++num_images;
      }
    }
  };
  // Decodes with drafts that alone would fill the steps.
  for (int idx = 0; idx < 12; ++idx) {
    harness.Add(Harness::Spec(RandomIds(random, 4, 500), 100)).value();
  }
  for (int turn = 0; turn < 8; ++turn) harness.Turn();
  std::vector<std::pair<SequenceId, SequenceSpec>> with_images;
  for (int32_t slot = 12; slot < 15; ++slot) rows_of_slot[slot] = 0;
  for (int idx = 0; idx < 3; ++idx) {
    const SequenceSpec spec = SpecWithImage(random, 45);
    with_images.emplace_back(harness.Add(spec).value(), spec);
  }
  for (int turn = 0; turn < 40; ++turn) harness.Turn();
  for (const auto& [id, spec] : with_images) {
    EXPECT_EQ(harness.outputs_[id],
              FakeExecutor::Continuation(spec.prompt, 4, harness.vocab_size()));
  }
  EXPECT_EQ(num_images, 3);
  EXPECT_LE(harness.largest_step_, 50u);
  harness.RunToEnd();
}

TEST_P(SchedulerModes, AnImageThatNoStepHasRoomForIsRefused) {
  SchedulerLimits limits;
  limits.max_num_batched_tokens = 32;
  limits.max_step_rows = 50;
  Harness harness(1024, limits, GetParam(), {4, 8}, PlanWithImages());
  std::mt19937 random(12);
  EXPECT_TRUE(harness.Add(SpecWithImage(random, 49)).ok());
  const auto refused = harness.Add(SpecWithImage(random, 50));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("--max-num-batched-tokens"), std::string::npos);
  harness.RunToEnd();
}

TEST_P(SchedulerModes, PromptsOfOtherMediaOrAnotherAdapterShareNothing) {
  Harness harness(256, {}, GetParam());
  const std::vector<int32_t> prompt(100, 5);
  const auto hits_of = [&](uint64_t adapter, uint64_t digest) {
    const uint64_t before = harness.scheduler().stats().num_prefix_hit_tokens;
    SequenceSpec spec = Harness::Spec(prompt, 5);
    spec.identity.adapter = adapter;
    if (digest != 0) spec.identity.media = {{.position = 10, .low = digest}};
    harness.Add(spec).value();
    harness.RunToEnd();
    return harness.scheduler().stats().num_prefix_hit_tokens - before;
  };
  EXPECT_EQ(hits_of(0, 0), 0u);
  EXPECT_EQ(hits_of(0, 1), 0u);
  EXPECT_EQ(hits_of(0, 2), 0u);
  EXPECT_EQ(hits_of(1, 1), 0u);
  EXPECT_EQ(hits_of(0, 1), 99u);
  EXPECT_EQ(hits_of(1, 1), 99u);
  SequenceSpec outside = Harness::Spec(prompt, 5);
  outside.identity.media = {{.position = 100}};
  EXPECT_FALSE(harness.Add(outside).ok());
}

TEST_P(SchedulerModes, PromptsUnderOtherSaltsShareNothing) {
  Harness harness(256, {}, GetParam());
  const std::vector<int32_t> prompt(100, 5);
  const auto hits_of = [&](const std::string& salt) {
    const uint64_t before = harness.scheduler().stats().num_prefix_hit_tokens;
    SequenceSpec spec = Harness::Spec(prompt, 5);
    spec.identity.salt = salt;
    harness.Add(spec).value();
    harness.RunToEnd();
    return harness.scheduler().stats().num_prefix_hit_tokens - before;
  };
  for (const std::string salt : {"", "a", "b"}) EXPECT_EQ(hits_of(salt), 0u) << salt;
  for (const std::string salt : {"", "a", "b"}) EXPECT_EQ(hits_of(salt), 99u) << salt;
}

// One that waits for room is looked at again in every step.
TEST_P(SchedulerModes, WaitingForRoomNeitherHashesAgainNorUsesAPoint) {
  SchedulerLimits limits;
  limits.sliding_slack = 8;
  Harness harness(60, limits, GetParam());
  std::mt19937 random(10);
  const auto add = [&](const std::vector<int32_t>& prompt, int max_new_tokens, bool cache_at_end) {
    SequenceSpec spec = Harness::Spec(prompt, max_new_tokens);
    spec.cache_points.clear();
    spec.cache_at_end = cache_at_end;
    return harness.Add(spec).value();
  };
  // A prompt, its answer and a new question.
  const auto converse = [&](std::vector<int32_t> prompt, int question_len) {
    const SequenceId id = add(prompt, 5, /*cache_at_end=*/true);
    harness.RunToEnd();
    const auto question = RandomIds(random, question_len, 500);
    prompt.insert(prompt.end(), harness.outputs_[id].begin(), harness.outputs_[id].end());
    prompt.insert(prompt.end(), question.begin(), question.end());
    return prompt;
  };
  const auto other_conversation = converse(RandomIds(random, 40, 500), 1);
  const auto next_turn = converse(RandomIds(random, 40, 500), 160);

  const SequenceId in_the_way = add(RandomIds(random, 120, 500), 40, /*cache_at_end=*/false);
  harness.Turn();
  const SequenceId waiting = add(next_turn, 5, /*cache_at_end=*/true);
  harness.Turn();
  const uint64_t num_hashed = harness.scheduler().stats().num_hashed_tokens;
  for (int turn = 0; turn < 20; ++turn) harness.Turn();
  ASSERT_EQ(harness.scheduler().stats().num_waiting, 1);
  // What the running one generates, and nothing else.
  EXPECT_LE(harness.scheduler().stats().num_hashed_tokens, num_hashed + 20);
  harness.RunToEnd();
  EXPECT_EQ(harness.finished_.at(in_the_way), FinishReason::kLength);
  EXPECT_EQ(harness.outputs_[waiting],
            FakeExecutor::Continuation(next_turn, 5, harness.vocab_size()));
  const uint64_t num_hits = harness.scheduler().stats().num_prefix_hit_tokens;
  EXPECT_EQ(num_hits, 44u);

  // Room for a few pages: the point where the turn went on is left, so its pages go, not those of
  // the older one of the other conversation.
  ASSERT_LT(harness.scheduler().stats().num_free_pages, 9);
  add(RandomIds(random, 24, 500), 1, /*cache_at_end=*/false);
  harness.RunToEnd();
  add(other_conversation, 1, /*cache_at_end=*/false);
  harness.RunToEnd();
  EXPECT_EQ(harness.scheduler().stats().num_prefix_hit_tokens, num_hits + 44u);
}

TEST_P(SchedulerModes, SequencesOfOneLeaderShareItsPrompt) {
  SchedulerLimits limits;
  limits.max_num_batched_tokens = 64;
  Harness harness(400, limits, GetParam());
  std::mt19937 random(7);
  const std::vector<int32_t> prompt = RandomIds(random, 200, 500);
  const SequenceId leader = harness.Add(Harness::Spec(prompt, 10)).value();
  for (int idx = 0; idx < 3; ++idx) {
    SequenceSpec spec = Harness::Spec(prompt, 10);
    spec.leader = leader;
    harness.Add(spec).value();
  }
  harness.RunToEnd();
  EXPECT_EQ(harness.scheduler().stats().num_prefix_hit_tokens, 3u * 199u);
  for (const auto& [id, output] : harness.outputs_) {
    EXPECT_EQ(output, FakeExecutor::Continuation(prompt, 10, harness.vocab_size())) << id;
  }
}

TEST_P(SchedulerModes, ASequenceWithDraftsInFlightIsPlannedAgain) {
  SchedulerLimits limits;
  limits.num_drafts = 3;
  Harness harness(256, limits, GetParam());
  std::mt19937 random(11);
  const std::vector<int32_t> prompt = RandomIds(random, 30, 500);
  const SequenceId id = harness.Add(Harness::Spec(prompt, 120)).value();
  int num_turns = 0;
  int most_in_flight = 0;
  while (harness.Turn()) {
    ++num_turns;
    most_in_flight = std::max(most_in_flight, harness.num_in_flight());
    harness.scheduler().CheckIntegrity();
  }
  EXPECT_EQ(harness.outputs_[id], FakeExecutor::Continuation(prompt, 120, harness.vocab_size()));
  // The drafter is right three times in four: about 2.7 tokens a step.
  EXPECT_LT(num_turns, 80);
  EXPECT_EQ(most_in_flight, GetParam() ? 1 : 0);  // left when one of two was collected
}

TEST_P(SchedulerModes, DraftsTakeNoSequenceItsRow) {
  SchedulerLimits limits;
  limits.max_num_seqs = 6;
  limits.max_num_batched_tokens = 8;
  limits.num_drafts = 5;
  Harness harness(400, limits, GetParam());
  std::mt19937 random(13);
  for (int idx = 0; idx < 6; ++idx) {
    harness.Add(Harness::Spec(RandomIds(random, 3, 500), 60)).value();
  }
  // When all of them decode, none is ahead of another by more than drafts can explain.
  for (int turn = 0; turn < 20; ++turn) ASSERT_TRUE(harness.Turn());
  for (SequenceId id = 1; id <= 6; ++id) {
    const Sequence* sequence = harness.scheduler().Find(id);
    ASSERT_NE(sequence, nullptr);
    EXPECT_GT(sequence->num_outputs(), 5) << id;
  }
  harness.RunToEnd();
}

TEST_P(SchedulerModes, TheNumberOfDraftsMayChangeFromStepToStep) {
  SchedulerLimits limits;
  limits.num_drafts = 6;
  Harness harness(400, limits, GetParam());
  std::mt19937 random(17);
  std::map<SequenceId, std::vector<int32_t>> prompts;
  for (int idx = 0; idx < 5; ++idx) {
    const auto prompt = RandomIds(random, 20 + idx, 500);
    prompts[harness.Add(Harness::Spec(prompt, 90)).value()] = prompt;
  }
  do {
    harness.scheduler().set_num_drafts(static_cast<int>(random() % 9));
  } while (harness.Turn());
  for (const auto& [id, prompt] : prompts) {
    EXPECT_EQ(harness.outputs_[id], FakeExecutor::Continuation(prompt, 90, harness.vocab_size()));
  }
}

TEST_P(SchedulerModes, ASequenceThatFailsEndsWithItsErrorAndLeavesOthersAlone) {
  SchedulerLimits limits;
  limits.num_drafts = 4;
  Harness harness(512, limits, GetParam());
  harness.executor().FailOneIn(40);
  std::mt19937 random(12);
  std::map<SequenceId, std::vector<int32_t>> prompts;
  for (int idx = 0; idx < 60; ++idx) {
    const auto prompt = RandomIds(random, 1 + idx % 9, 500);
    prompts[harness.Add(Harness::Spec(prompt, 30)).value()] = prompt;
  }
  harness.RunToEnd();
  int num_failed = 0;
  for (const auto& [id, prompt] : prompts) {
    const auto& output = harness.outputs_[id];
    EXPECT_EQ(output, FakeExecutor::Continuation(prompt, static_cast<int>(output.size()),
                                                 harness.vocab_size()));
    const bool has_failed = harness.finished_.at(id) == FinishReason::kError;
    num_failed += has_failed ? 1 : 0;
    EXPECT_EQ(output.size() == 30, !has_failed) << id;
  }
  EXPECT_EQ(num_failed, harness.executor().num_failures());
  EXPECT_GT(num_failed, 5);
  EXPECT_LT(num_failed, 55);
}

TEST_P(SchedulerModes, ALateSequenceSkipsStepsAndSaysTheSame) {
  for (const int num_drafts : {0, 4}) {
    for (const int num_pages : {512, 60}) {  // the few: late ones are preempted
      SchedulerLimits limits;
      limits.num_drafts = num_drafts;
      limits.max_num_seqs = 8;
      Harness harness(num_pages, limits, GetParam());
      harness.executor().BeLateOneIn(6);
      std::mt19937 random(12);
      std::map<SequenceId, std::vector<int32_t>> prompts;
      for (int idx = 0; idx < 40; ++idx) {
        const auto prompt = RandomIds(random, 1 + idx % 30, 500);
        prompts[harness.Add(Harness::Spec(prompt, 60)).value()] = prompt;
      }
      harness.RunToEnd();
      for (const auto& [id, prompt] : prompts) {
        EXPECT_EQ(harness.outputs_[id],
                  FakeExecutor::Continuation(prompt, 60, harness.vocab_size()));
      }
      EXPECT_GT(harness.executor().num_late(), 100);
    }
  }
}

TEST_P(SchedulerModes, OthersHaveTheirStepsWhileASequenceIsLate) {
  Harness harness(512, {}, GetParam());
  std::mt19937 random(3);
  const SequenceId slow = harness.Add(Harness::Spec(RandomIds(random, 5, 500), 40)).value();
  const auto prompt = RandomIds(random, 7, 500);
  const SequenceId quick = harness.Add(Harness::Spec(prompt, 40)).value();
  harness.executor().BeLateOneIn(1);
  while (harness.num_late() < 2) ASSERT_TRUE(harness.Step());
  harness.executor().BeLateOneIn(0);
  harness.scheduler().TakeMask(quick, nullptr, 1);
  for (int step = 0; step < 42; ++step) harness.Step();
  EXPECT_EQ(harness.outputs_[quick], FakeExecutor::Continuation(prompt, 40, harness.vocab_size()));
  EXPECT_TRUE(harness.outputs_[slow].empty());
  EXPECT_FALSE(harness.Step()) << "nothing can be planned";
  harness.scheduler().TakeMask(slow, nullptr, 1);
  while (harness.Step()) {
  }
  EXPECT_EQ(harness.outputs_[slow].size(), 40u);
}

TEST_P(SchedulerModes, PagesRunningOutPreemptsTheYoungestAndLosesNothing) {
  SchedulerLimits limits;
  limits.max_num_seqs = 8;
  Harness harness(60, limits, GetParam());
  std::mt19937 random(3);
  std::map<SequenceId, std::vector<int32_t>> prompts;
  for (int idx = 0; idx < 8; ++idx) {
    const auto prompt = RandomIds(random, 20, 500);
    prompts[harness.Add(Harness::Spec(prompt, 120)).value()] = prompt;
  }
  harness.RunToEnd();
  EXPECT_GT(harness.scheduler().stats().num_preemptions, 0u);
  for (const auto& [id, prompt] : prompts) {
    EXPECT_EQ(harness.outputs_[id], FakeExecutor::Continuation(prompt, 120, harness.vocab_size()));
  }
}

TEST_P(SchedulerModes, SessionsInTurnKeepTheirReusableTokensWhileTheyFit) {
  // Each session grows by a question and an answer per turn; the next prompt goes on where the last
  // answer ended. The pool is sized so that the working set takes the given share of it.
  for (const double share : {0.25, 0.6, 0.9}) {
    constexpr int kSessions = 12;
    constexpr int kTurns = 8;
    constexpr int kQuestion = 30;
    constexpr int kAnswer = 20;
    constexpr int kLongest = kTurns * (kQuestion + kAnswer);
    // Pages a session's snapshot holds at its longest, and one sequence running beside them.
    const int per_session = kLongest / 8 + 1 + 24 / 4 + 2;
    const int num_pages = static_cast<int>((kSessions + 2) * per_session / share);
    Harness harness(num_pages, {}, GetParam());
    std::mt19937 random(4);
    std::vector<std::vector<int32_t>> histories(kSessions);
    uint64_t reusable = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      for (std::vector<int32_t>& history : histories) {
        if (!history.empty()) reusable += history.size() - 1;
        const auto question = RandomIds(random, kQuestion, 500);
        history.insert(history.end(), question.begin(), question.end());
        const SequenceId id = harness.Add(Harness::Spec(history, kAnswer)).value();
        harness.RunToEnd();
        const std::vector<int32_t>& answer = harness.outputs_[id];
        ASSERT_EQ(answer, FakeExecutor::Continuation(history, kAnswer, harness.vocab_size()));
        history.insert(history.end(), answer.begin(), answer.end());
      }
    }
    const double kept = static_cast<double>(harness.scheduler().stats().num_prefix_hit_tokens) /
                        static_cast<double>(reusable);
    EXPECT_GE(kept, 0.95) << "pool use " << share;
  }
}

// The whole machine under random load: arrivals, cancels, drafts, tiny pools, shared prefixes,
// sequences that fail in a step or are late.
// A form that every text has, so that the executor drafts for it.
std::shared_ptr<const grammar::CompiledGrammar> AnyText(int vocab_size) {
  static const auto vocabulary =
      std::make_shared<grammar::TokenVocabulary>(std::vector<std::string>(vocab_size));
  return std::make_shared<grammar::CompiledGrammar>(std::nullopt, vocabulary,
                                                    std::vector<int32_t>());
}

void RandomSteps(int num_turns, int seed, bool overlap) {
  std::mt19937 random(seed);
  int turns_left = num_turns;
  while (turns_left > 0) {
    SchedulerLimits limits;
    limits.max_num_seqs = 1 + static_cast<int>(random() % 12);
    limits.max_num_batched_tokens = 1 + static_cast<int>(random() % 64);
    limits.max_scored_rows = 1 + static_cast<int>(random() % 16);
    limits.sliding_slack = 8 + static_cast<int>(random() % 24);
    limits.prefix_caching = random() % 4 != 0;
    limits.max_step_ms = random() % 2 == 0 ? static_cast<double>(random() % 40) : 0.0;
    const int draft_kind = static_cast<int>(random() % 3);  // none, the test's, the executor's
    const int num_pages = 40 + static_cast<int>(random() % 200);
    limits.num_drafts = draft_kind == 2 ? static_cast<int>(random() % 9) : 0;
    if (draft_kind == 2 && random() % 2 == 0) {
      limits.num_forced_drafts = 1 + static_cast<int>(random() % kMaxDrafts);
      limits.num_ngram_drafts = static_cast<int>(random() % 9);
    }
    Harness harness(num_pages, limits, overlap,
                    {1 + static_cast<int>(random() % 8), 1 + static_cast<int>(random() % 16)});
    if (random() % 2 == 0) harness.step_ms_ = FakeMilliseconds;
    if (random() % 2 == 0) harness.executor().FailOneIn(20 + static_cast<int>(random() % 200));
    if (random() % 2 == 0) harness.executor().BeLateOneIn(2 + static_cast<int>(random() % 50));
    const int vocab_size = harness.vocab_size();
    const bool has_drafts = draft_kind != 0;
    if (draft_kind == 1) {
      harness.scheduler().set_draft_source([&](const Sequence& sequence, int32_t max_drafts) {
        const int count = std::min<int>(max_drafts, static_cast<int>(random() % 6));
        auto drafts = FakeExecutor::Continuation(sequence.tokens, count, vocab_size);
        if (!drafts.empty() && random() % 2 == 0) {
          drafts[random() % drafts.size()] = static_cast<int32_t>(random() % vocab_size);
        }
        return drafts;
      });
    }
    std::map<SequenceId, std::pair<std::vector<int32_t>, int>> open;  // prompt, max_new_tokens
    std::map<SequenceId, std::pair<std::vector<int32_t>, int>> all;
    std::set<SequenceId> scored;
    const auto anything = AnyText(vocab_size);
    std::vector<std::vector<int32_t>> old_prompts = {{1, 2, 3}};
    for (int turn = 0; turn < 500 && turns_left > 0; ++turn, --turns_left) {
      constexpr int kMaxWaiting = 16;
      if (random() % 3 == 0 && harness.scheduler().stats().num_waiting < kMaxWaiting) {
        // A fresh prompt, or one that goes on from an older one.
        std::vector<int32_t> prompt = old_prompts[random() % old_prompts.size()];
        prompt.resize(random() % (prompt.size() + 1));
        const auto tail = RandomIds(random, 1 + static_cast<int>(random() % 60), vocab_size);
        prompt.insert(prompt.end(), tail.begin(), tail.end());
        SequenceSpec spec = Harness::Spec(prompt, 1 + static_cast<int>(random() % 60));
        if (random() % 8 == 0) spec.max_new_tokens = 0;
        if (random() % 4 == 0) spec.num_prompt_logprobs = 2;
        if (random() % 2 == 0) spec.grammar = anything;
        if (random() % 2 == 0 && prompt.size() > 6) {
          spec.cache_points.insert(spec.cache_points.begin(),
                                   static_cast<int32_t>(1 + random() % (prompt.size() - 3)));
        }
        spec.cache_at_end = random() % 2 == 0;
        const auto id = harness.Add(spec);
        if (id.ok()) {
          open[*id] = {prompt, spec.max_new_tokens};
          if (spec.num_prompt_logprobs >= 0) scored.insert(*id);
          all[*id] = open[*id];
          old_prompts.push_back(prompt);
        }
      }
      if (random() % 20 == 0 && !open.empty()) {
        auto it = open.begin();
        std::advance(it, random() % open.size());
        if (!harness.finished_.contains(it->first)) {
          ASSERT_TRUE(harness.scheduler().Cancel(it->first));
          harness.finished_[it->first] = FinishReason::kCancelled;
        }
        open.erase(it);
      }
      harness.Turn();
      harness.scheduler().CheckIntegrity();
      if (turn % 8 == 0) {
        ASSERT_NO_FATAL_FAILURE(harness.CheckKeptPages());
      }
      ASSERT_LE(harness.largest_step_, static_cast<size_t>(limits.max_num_batched_tokens));
      if (!has_drafts) {
        ASSERT_LE(harness.most_outputs_, limits.max_num_seqs + limits.max_scored_rows);
      }
    }
    harness.RunToEnd();
    harness.scheduler().CheckIntegrity();
    ASSERT_NO_FATAL_FAILURE(harness.CheckKeptPages());
    for (const auto& [id, request] : all) {
      ASSERT_TRUE(harness.finished_.contains(id)) << "request " << id << " never ended";
      const auto& output = harness.outputs_[id];
      const auto expected =
          FakeExecutor::Continuation(request.first, static_cast<int>(output.size()), vocab_size);
      ASSERT_EQ(output, expected) << "request " << id;
      if (harness.finished_.at(id) == FinishReason::kLength) {
        ASSERT_EQ(static_cast<int>(output.size()), request.second);
      }
      std::vector<float> scores;
      if (scored.contains(id)) scores = FakeExecutor::Scores(request.first);
      const bool is_cut = harness.finished_.at(id) == FinishReason::kCancelled ||
                          harness.finished_.at(id) == FinishReason::kError;
      if (is_cut && output.empty()) {
        scores.resize(std::min(scores.size(), harness.scores_[id].size()));
      }
      ASSERT_EQ(harness.scores_[id], scores) << "request " << id;
    }
    harness.scheduler().ClearPrefixCache();
    ASSERT_EQ(harness.scheduler().stats().num_free_pages, num_pages - 1);
  }
}

TEST_P(SchedulerModes, TwoHundredThousandRandomStepsKeepEveryPromise) {
  for (int seed = 0; seed < 8; ++seed) {
    RandomSteps(/*num_turns=*/25000, seed, GetParam());
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace lapidary
