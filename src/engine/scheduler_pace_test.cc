// Running answers keep their pace while prompts are computed, and no prompt waits for all others.
#include "engine/scheduler_harness.h"

namespace lapidary {
namespace {

class SchedulerPace : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Loop, SchedulerPace, testing::Bool(),
                         [](const auto& mode) { return mode.param ? "Overlapped" : "Plain"; });

// The times of the steps that a prompt takes beside so many sequences that decode.
std::vector<double> TimePrompt(Harness& harness, int num_decoding, int prompt_len) {
  harness.step_ms_ = FakeMilliseconds;
  std::mt19937 random(21);
  for (int idx = 0; idx < num_decoding; ++idx) {
    harness.Add(Harness::Spec(RandomIds(random, 10, 500), 400)).value();
  }
  for (int turn = 0; turn < 10; ++turn) harness.Turn();
  const SequenceId prompt =
      harness.Add(Harness::Spec(RandomIds(random, prompt_len, 500), 1)).value();
  std::vector<double> times;
  while (!harness.finished_.contains(prompt) && times.size() < 1000) {
    EXPECT_TRUE(harness.Turn());
    times.push_back(FakeMilliseconds(harness.last_shape_));
  }
  return times;
}

TEST_P(SchedulerPace, StepsThatCarryDecodesKeepToTheirTime) {
  SchedulerLimits limits;
  limits.max_num_batched_tokens = 512;
  limits.max_step_ms = 50.0;
  Harness harness(2000, limits, GetParam());
  std::vector<double> times = TimePrompt(harness, /*num_decoding=*/4, /*prompt_len=*/3000);
  // The first steps find out what rows cost; then the time is kept, and used.
  ASSERT_GT(times.size(), 20u);
  std::sort(times.begin() + 8, times.end());
  EXPECT_LT(times.back(), 60.0) << harness.scheduler().cost().ToString();
  EXPECT_GT(times[times.size() / 2], 40.0) << harness.scheduler().cost().ToString();
  harness.RunToEnd();
}

TEST_P(SchedulerPace, TheTimeOfAStepFollowsItsDecodesWhereThatIsMore) {
  SchedulerLimits limits;
  limits.max_num_batched_tokens = 512;
  limits.max_step_ms = 1.0;
  limits.max_step_growth = 3.0;
  Harness harness(2000, limits, GetParam());
  std::vector<double> times = TimePrompt(harness, /*num_decoding=*/1, /*prompt_len=*/1500);
  ASSERT_GT(times.size(), 12u);
  std::sort(times.begin() + 8, times.end());
  EXPECT_NEAR(times[times.size() - 2], 3.0 * 10.5, 4.0) << harness.scheduler().cost().ToString();
  harness.RunToEnd();
}

// However slow the decodes are, prompts come on.
TEST_P(SchedulerPace, PromptsGetAPartOfAStepThatIsTooLongAlready) {
  SchedulerLimits limits;
  limits.max_num_batched_tokens = 512;
  limits.max_step_ms = 1.0;
  Harness harness(2000, limits, GetParam());
  EXPECT_LE(TimePrompt(harness, /*num_decoding=*/1, /*prompt_len=*/320).size(), 23u);
  harness.RunToEnd();
}

int StepsToFirstToken(Harness& harness, SequenceId id) {
  for (int num_steps = 1; num_steps < 1000; ++num_steps) {
    EXPECT_TRUE(harness.Turn());
    if (!harness.outputs_[id].empty()) return num_steps;
  }
  return 1000;
}

TEST_P(SchedulerPace, AShortPromptIsAnsweredBesideLongOnes) {
  for (const int num_long : {1, 3}) {
    for (const bool is_timed : {false, true}) {
      SchedulerLimits limits;
      limits.max_num_batched_tokens = 64;
      if (is_timed) limits.max_step_ms = 30.0;
      Harness harness(4000, limits, GetParam());
      harness.step_ms_ = FakeMilliseconds;
      std::mt19937 random(24);
      for (int idx = 0; idx < num_long; ++idx) {
        harness.Add(Harness::Spec(RandomIds(random, 3000, 500), 300)).value();
      }
      for (int turn = 0; turn < 10; ++turn) harness.Turn();
      const SequenceId id = harness.Add(Harness::Spec(RandomIds(random, 12, 500), 30)).value();
      EXPECT_LE(StepsToFirstToken(harness, id), 5) << num_long << " " << is_timed;
      // And one beside decodes, which the time is for.
      const SequenceId next = harness.Add(Harness::Spec(RandomIds(random, 12, 500), 30)).value();
      EXPECT_LE(StepsToFirstToken(harness, next), 5) << num_long << " " << is_timed;
      harness.RunToEnd();
    }
  }
}

// The steps of one prompt that is computed alone, and their times; the costs are known before.
struct PromptSteps {
  std::vector<StepShape> shapes;
  std::vector<double> times;
};

PromptSteps StepsOfPromptAlone(Harness& harness, int prompt_len) {
  std::mt19937 random(28);
  for (int idx = 0; idx < 2; ++idx) {
    harness.Add(Harness::Spec(RandomIds(random, 200, 500), 20)).value();
    harness.RunToEnd();
  }
  const SequenceId prompt =
      harness.Add(Harness::Spec(RandomIds(random, prompt_len, 500), 1)).value();
  PromptSteps steps;
  while (!harness.finished_.contains(prompt) && steps.times.size() < 1000) {
    EXPECT_TRUE(harness.Turn());
    steps.shapes.push_back(harness.last_shape_);
    steps.times.push_back(harness.step_ms_(harness.last_shape_));
  }
  harness.RunToEnd();
  return steps;
}

TEST_P(SchedulerPace, StepsOfPromptsAloneKeepToTheirTime) {
  SchedulerLimits limits;
  limits.max_model_len = 10'000;
  limits.max_num_batched_tokens = 512;
  limits.max_prompt_ms = 120.0;
  Harness harness(4000, limits, GetParam());
  harness.step_ms_ = FakeMilliseconds;
  const PromptSteps steps = StepsOfPromptAlone(harness, /*prompt_len=*/4000);
  ASSERT_GT(steps.times.size(), 15u);
  // The last is what is left of the prompt.
  for (size_t idx = 2; idx + 1 < steps.times.size(); ++idx) {
    // What keys cost is learnt as they become more.
    EXPECT_NEAR(steps.times[idx], 125.0, 30.0) << harness.scheduler().cost().ToString();
  }
}

// Not so short that most of a step goes into what every step costs.
TEST_P(SchedulerPace, StepsOfPromptsAloneMostlyComputeRows) {
  SchedulerLimits limits;
  limits.max_model_len = 10'000;
  limits.max_num_batched_tokens = 512;
  limits.max_prompt_ms = 20.0;
  Harness harness(4000, limits, GetParam());
  harness.step_ms_ = [](const StepShape& shape) { return 10.0 + 0.5 * shape.num_rows(); };
  const PromptSteps steps = StepsOfPromptAlone(harness, /*prompt_len=*/3000);
  ASSERT_GT(steps.times.size(), 10u);
  for (size_t idx = 2; idx + 1 < steps.times.size(); ++idx) {
    EXPECT_NEAR(steps.times[idx], 100.0, 12.0) << harness.scheduler().cost().ToString();
  }
}

// Keys that take long to read are read for 128 rows at least.
TEST_P(SchedulerPace, StepsOfPromptsAloneHaveRowsForWhatTheyRead) {
  SchedulerLimits limits;
  limits.max_model_len = 10'000;
  limits.max_num_batched_tokens = 512;
  limits.max_prompt_ms = 20.0;
  Harness harness(4000, limits, GetParam());
  harness.step_ms_ = [](const StepShape& shape) {
    return 1.0 + 0.01 * shape.num_rows() + 1e-3 * (shape.num_decode_keys + shape.num_chunk_keys);
  };
  const PromptSteps steps = StepsOfPromptAlone(harness, /*prompt_len=*/4000);
  ASSERT_GT(steps.shapes.size(), 10u);
  for (size_t idx = 0; idx + 1 < steps.shapes.size(); ++idx) {
    EXPECT_GE(steps.shapes[idx].num_rows(), 120) << harness.scheduler().cost().ToString();
  }
  EXPECT_LE(steps.shapes[steps.shapes.size() - 2].num_rows(), 136);
}

// How long a short prompt waits for its first token beside a long one, by the simulated clock.
double MillisecondsBesidePrompt(double max_prompt_ms, bool overlap) {
  SchedulerLimits limits;
  limits.max_model_len = 10'000;
  limits.max_num_batched_tokens = 512;
  limits.max_step_ms = 100.0;
  limits.max_prompt_ms = max_prompt_ms;
  Harness harness(8000, limits, overlap);
  harness.step_ms_ = FakeMilliseconds;
  std::mt19937 random(29);
  harness.Add(Harness::Spec(RandomIds(random, 20, 500), 20)).value();
  harness.RunToEnd();
  harness.Add(Harness::Spec(RandomIds(random, 8000, 500), 3)).value();
  for (int turn = 0; turn < 8; ++turn) harness.Turn();
  const SequenceId id = harness.Add(Harness::Spec(RandomIds(random, 12, 500), 3)).value();
  double ms = 0.0;
  while (harness.outputs_[id].empty()) {
    EXPECT_TRUE(harness.Turn());
    ms += FakeMilliseconds(harness.last_shape_);
  }
  return ms;
}

TEST_P(SchedulerPace, AShortPromptWaitsForThreeShortSteps) {
  EXPECT_LE(MillisecondsBesidePrompt(/*max_prompt_ms=*/100.0, GetParam()), 3.3 * 100.0);
  EXPECT_GT(MillisecondsBesidePrompt(/*max_prompt_ms=*/0.0, GetParam()), 1.4 * 330.0);
}

// The longest context of all models, in steps of a GPU's size.
TEST_P(SchedulerPace, AShortPromptIsAnsweredBesideOneThatFillsTheContext) {
  SchedulerLimits limits;
  limits.max_model_len = 131'072;
  limits.max_num_batched_tokens = 2048;
  limits.max_step_ms = 100.0;
  Harness harness(40'000, limits, GetParam());
  harness.step_ms_ = FakeMilliseconds;
  std::mt19937 random(26);
  const SequenceId whole = harness.Add(Harness::Spec(RandomIds(random, 131'000, 500), 3)).value();
  int num_short = 0;
  while (harness.outputs_[whole].empty()) {
    for (int turn = 0; turn < 20; ++turn) harness.Turn();
    const SequenceId id = harness.Add(Harness::Spec(RandomIds(random, 12, 500), 30)).value();
    EXPECT_LE(StepsToFirstToken(harness, id), 5) << num_short << " before";
    ++num_short;
  }
  EXPECT_GT(num_short, 2);
  harness.RunToEnd();
}

TEST_P(SchedulerPace, CopiesThatWaitForALongPromptHoldNobodyUp) {
  SchedulerLimits limits;
  limits.max_num_batched_tokens = 64;
  Harness harness(4000, limits, GetParam());
  std::mt19937 random(25);
  const auto prompt = RandomIds(random, 3000, 500);
  const SequenceId leader = harness.Add(Harness::Spec(prompt, 3)).value();
  SequenceSpec copy = Harness::Spec(prompt, 3);
  copy.leader = leader;
  harness.Add(copy).value();
  harness.Turn();
  const SequenceId id = harness.Add(Harness::Spec(RandomIds(random, 12, 500), 3)).value();
  EXPECT_LE(StepsToFirstToken(harness, id), 5);
  harness.RunToEnd();
}

// Sharing steps would only make the first of them wait for the last.
TEST_P(SchedulerPace, PromptsOfAboutOneLengthAreDoneOneBehindTheOther) {
  SchedulerLimits limits;
  limits.max_num_batched_tokens = 64;
  limits.prefix_caching = false;
  Harness harness(4000, limits, GetParam());
  std::mt19937 random(27);
  std::vector<SequenceId> ids;
  for (const int prompt_len : {170, 150, 100, 160, 140}) {
    ids.push_back(harness.Add(Harness::Spec(RandomIds(random, prompt_len, 500), 3)).value());
  }
  while (harness.outputs_[ids.back()].empty()) {
    ASSERT_TRUE(harness.Turn());
    const auto is_begun = [&](SequenceId id) {
      const Sequence* sequence = harness.scheduler().Find(id);
      return sequence != nullptr && sequence->is_prefilling() && sequence->num_planned > 0;
    };
    EXPECT_LE(std::count_if(ids.begin(), ids.end(), is_begun), 1);
  }
  harness.RunToEnd();
}

// Nobody is starved: neither the short ones by the long nor the long ones by the short.
TEST_P(SchedulerPace, EveryPromptComesOnWhateverElseArrives) {
  for (int seed = 0; seed < 8; ++seed) {
    std::mt19937 random(100 + seed);
    SchedulerLimits limits;
    limits.max_num_seqs = 64;
    limits.max_num_batched_tokens = 64;
    if (seed % 2 == 1) limits.max_step_ms = 20.0 + static_cast<double>(random() % 40);
    Harness harness(6000, limits, GetParam());
    harness.step_ms_ = FakeMilliseconds;
    struct Arrival {
      int step;
      int prompt_len;
    };
    std::map<SequenceId, Arrival> open;
    int load = 0;  // rows that have arrived: what an oldest-first order would make one wait for
    for (int step = 0; step < 600; ++step) {
      if (random() % 6 == 0) {
        const int prompt_len = random() % 12 == 0 ? 400 : 1 + static_cast<int>(random() % 12);
        const auto id = harness.Add(Harness::Spec(RandomIds(random, prompt_len, 500), 3)).value();
        open[id] = {step, prompt_len};
        load += prompt_len;
      }
      harness.Turn();
      for (auto it = open.begin(); it != open.end();) {
        const auto [arrived, prompt_len] = it->second;
        const int waited = step - arrived;
        if (harness.outputs_[it->first].empty()) {
          ASSERT_LE(waited, prompt_len <= 12 ? 8 : 40 + load / 16) << "seed " << seed;
          ++it;
        } else {
          it = open.erase(it);
        }
      }
    }
    harness.RunToEnd();
  }
}

}  // namespace
}  // namespace lapidary
