// The default step time at work: the scheduler under a load of many clients, on a device whose
// steps take what they take on an H200 (docs/performance.md), without the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "engine/scheduler.h"
#include "load/limits.h"
#include "model/presets.h"

namespace lapidary {
namespace {

// What a step takes. A step reads all weights; beyond some rows it is bound by arithmetic instead.
// Of experts, more rows read more.
struct SimulatedModel {
  const char* name;
  double overhead_ms;
  double weights_ms;
  double experts_ms;  // of all experts
  double row_ms;
  double decode_key_ms;
  double chunk_key_ms;
  int max_num_batched_tokens;

  double Milliseconds(const StepShape& step) const {
    const double num_rows = step.num_rows();
    const double arithmetic_ms = row_ms * num_rows;
    const double product_ms = experts_ms > 0.0
                                  ? experts_ms * (1.0 - std::exp(-num_rows / 24.0)) + arithmetic_ms
                                  : std::max(weights_ms, arithmetic_ms);
    return overhead_ms + product_ms + decode_key_ms * step.num_decode_keys +
           chunk_key_ms * step.num_chunk_keys;
  }
};

constexpr SimulatedModel kE2b = {"E2B", 0.5, 1.09, 0.0, 0.0028, 2.4e-5, 1e-7, 2048};
constexpr SimulatedModel kE4b = {"E4B", 0.55, 2.23, 0.0, 0.0084, 3.8e-5, 1e-7, 2048};
constexpr SimulatedModel k12b = {"12B", 0.5, 5.75, 0.0, 0.0366, 1.2e-4, 2e-7, 2048};
constexpr SimulatedModel k26b = {"26B-A4B", 2.0, 0.0, 11.5, 0.0145, 4.5e-5, 2e-7, 8192};
constexpr SimulatedModel k31b = {"31B", 0.9, 14.8, 0.0, 0.1, 2.5e-4, 6e-7, 2048};

// The scheduler one step ahead, as the engine's loop drives it, and a clock.
class Simulation {
 public:
  Simulation(const SimulatedModel& model, const StepTime& step_time)
      : model_(model),
        scheduler_(plan_, layout_, /*num_pages=*/200'000, Limits(model, step_time), 1) {
    // A server's first request: one token, whose step loads the code.
    Add(1, 3);
    while (Turn()) {
    }
    clock_ms_ = 0.0;
    gaps_.clear();
    first_tokens_ms_.clear();
  }

  SequenceId Add(int prompt_len, int max_new_tokens) {
    SequenceSpec spec;
    for (int idx = 0; idx < prompt_len; ++idx) {
      spec.prompt.push_back(static_cast<int32_t>(random_() % 500));
    }
    spec.max_new_tokens = max_new_tokens;
    spec.sampling = std::make_shared<SamplingParams>();
    EXPECT_TRUE(scheduler_.Add(++last_id_, std::move(spec)).ok());
    return last_id_;
  }

  // False when there was nothing to do.
  bool Turn() {
    while (in_flight_.size() < 2) {
      std::optional<StepPlan> plan = scheduler_.Plan();
      if (!plan) break;
      in_flight_.push_back(std::move(*plan));
    }
    if (in_flight_.empty()) return false;
    StepPlan plan = std::move(in_flight_.front());
    in_flight_.pop_front();
    const double slowness = num_steps_++ == 0 ? 10.0 : noise_(random_);
    const double ms = slowness * model_.Milliseconds(plan.shape);
    clock_ms_ += ms;
    scheduler_.Observe(plan.shape, ms);
    StepOutput output;
    output.sequences.resize(plan.entries.size());
    for (size_t idx = 0; idx < plan.entries.size(); ++idx) {
      if (plan.entries[idx].samples) output.sequences[idx].tokens.resize(1);
    }
    num_finished_ = 0;
    for (const SequenceProgress& progress :
         scheduler_.Complete(std::move(plan), std::move(output))) {
      if (progress.finish) ++num_finished_;
      if (progress.tokens.empty()) continue;
      const auto [last, is_first] = last_token_ms_.emplace(progress.id, clock_ms_);
      if (is_first) {
        first_tokens_ms_.push_back(clock_ms_);
      } else {
        gaps_.push_back(clock_ms_ - last->second);
      }
      last->second = clock_ms_;
    }
    return true;
  }

  bool has_answered(SequenceId id) const { return last_token_ms_.contains(id); }
  int num_finished() const { return num_finished_; }  // in the last turn
  double clock_ms() const { return clock_ms_; }
  std::vector<double>& gaps() { return gaps_; }  // ms between two tokens of an answer
  const std::vector<double>& first_tokens_ms() const { return first_tokens_ms_; }  // as they came

 private:
  static SchedulerLimits Limits(const SimulatedModel& model, const StepTime& step_time) {
    SchedulerLimits limits;
    limits.max_num_seqs = 128;
    limits.max_num_batched_tokens = model.max_num_batched_tokens;
    limits.prefix_caching = false;
    limits.max_step_ms = step_time.max_ms;
    limits.max_step_growth = step_time.max_growth;
    return limits;
  }

  const SimulatedModel model_;
  const ModelPlan plan_ =
      MakeModelPlan(ParseModelConfig(*PresetConfig("e2b"), "e2b").value()).value();
  const KvLayout layout_ = MakeKvLayout(plan_, KvFormat::kBF16);
  Scheduler scheduler_;
  std::deque<StepPlan> in_flight_;
  std::mt19937 random_{7};
  std::uniform_real_distribution<double> noise_{0.97, 1.03};
  SequenceId last_id_ = 0;
  int num_steps_ = 0;
  int num_finished_ = 0;
  double clock_ms_ = 0.0;
  std::map<SequenceId, double> last_token_ms_;
  std::vector<double> gaps_;
  std::vector<double> first_tokens_ms_;
};

struct Load {
  int num_clients;
  int num_requests;
  int prompt_len;
  int answer_len;
};

struct Served {
  double tokens_per_s = 0.0;
  double mean_first_ms = 0.0;  // first tokens
  double last_first_ms = 0.0;
  double median_gap_ms = 0.0;
  double p99_gap_ms = 0.0;
};

// Every client asks again when it has its answer.
Served Serve(const SimulatedModel& model, const StepTime& step_time, const Load& load) {
  Simulation simulation(model, step_time);
  int num_asked = 0;
  for (; num_asked < load.num_clients; ++num_asked)
    simulation.Add(load.prompt_len, load.answer_len);
  while (simulation.Turn()) {
    for (int idx = 0; idx < simulation.num_finished() && num_asked < load.num_requests; ++idx) {
      simulation.Add(load.prompt_len, load.answer_len);
      ++num_asked;
    }
  }
  std::vector<double>& gaps = simulation.gaps();
  std::sort(gaps.begin(), gaps.end());
  const std::vector<double>& firsts = simulation.first_tokens_ms();
  return {.tokens_per_s = 1e3 * load.num_requests * load.answer_len / simulation.clock_ms(),
          .mean_first_ms = std::accumulate(firsts.begin(), firsts.end(), 0.0) / std::ssize(firsts),
          .last_first_ms = firsts.back(),
          .median_gap_ms = gaps[gaps.size() / 2],
          .p99_gap_ms = gaps[gaps.size() * 99 / 100]};
}

TEST(StepTime, AHundredClientsKeepASteadyPaceAtNoCost) {
  for (const SimulatedModel& model : {kE2b, kE4b, k12b, k26b, k31b}) {
    const Load load = {100, 200, 512, 512};
    const Served off = Serve(model, {}, load);
    const Served limited = Serve(model, DefaultStepTime(DeviceKind::kCuda), load);
    EXPECT_LE(limited.p99_gap_ms, 3.0 * limited.median_gap_ms) << model.name;
    EXPECT_GE(limited.tokens_per_s, 0.97 * off.tokens_per_s) << model.name;
  }
}

// Most of the work is prompts, so whatever answers are spared costs something.
TEST(StepTime, LongPromptsDisturbAnswersLess) {
  SimulatedModel model = k26b;
  model.decode_key_ms = 8e-6;  // most layers see the last thousand of 8,000 alone
  const Load load = {80, 80, 8000, 1000};
  const Served off = Serve(model, {}, load);
  const Served limited = Serve(model, DefaultStepTime(DeviceKind::kCuda), load);
  EXPECT_LE(limited.p99_gap_ms, 0.65 * off.p99_gap_ms);
  EXPECT_GE(limited.tokens_per_s, 0.94 * off.tokens_per_s);
}

// Unlimited, these steps are what a client would notice.
TEST(StepTime, WithoutALimitAnswersWaitForPrompts) {
  const Served off = Serve(k31b, {}, {100, 200, 512, 512});
  EXPECT_GT(off.p99_gap_ms, 5.0 * off.median_gap_ms);
}

// One behind the other, n prompts of one length are done after (n + 1) / 2n of the time that all
// take, in the mean, and wait for half a step's end; if all shared every step, after nearly all.
TEST(StepTime, PromptsOfOneLengthAreAnsweredOneBehindTheOther) {
  for (const auto& [model, load] :
       {std::pair{k31b, Load{40, 40, 1000, 100}}, std::pair{kE4b, Load{64, 64, 8000, 100}}}) {
    const Served served = Serve(model, {}, load);
    const double in_order = 0.5 * (1.0 + 1.0 / load.num_clients);
    const double half_step_ms = 0.5 * model.row_ms * model.max_num_batched_tokens;
    EXPECT_LE(served.mean_first_ms, in_order * served.last_first_ms + half_step_ms) << model.name;
  }
}

// Steps until a short request has its first token that comes when a long prompt has just begun,
// beside so many answers.
int StepsToAnswer(const SimulatedModel& model, const StepTime& step_time, int long_len,
                  int num_answers) {
  Simulation simulation(model, step_time);
  for (int idx = 0; idx < num_answers; ++idx) simulation.Add(20, 1000);
  for (int turn = 0; turn < 40; ++turn) simulation.Turn();
  const SequenceId long_id = simulation.Add(long_len, 10);
  simulation.Turn();
  simulation.Turn();
  const SequenceId short_id = simulation.Add(12, 10);
  int num_steps = 0;
  while (!simulation.has_answered(short_id) && simulation.Turn()) ++num_steps;
  EXPECT_FALSE(simulation.has_answered(long_id));
  return num_steps;
}

TEST(StepTime, AShortRequestBehindAVeryLongPromptIsAnsweredWithinFiveSteps) {
  SimulatedModel small_steps = k31b;  // as on a CPU
  small_steps.max_num_batched_tokens = 512;
  for (const int num_answers : {0, 1, 30}) {
    for (const StepTime& step_time : {StepTime{}, DefaultStepTime(DeviceKind::kCuda)}) {
      EXPECT_LE(StepsToAnswer(small_steps, step_time, 8'000, num_answers), 5) << num_answers;
      EXPECT_LE(StepsToAnswer(k31b, step_time, 128'000, num_answers), 5) << num_answers;
    }
  }
}

}  // namespace
}  // namespace lapidary
