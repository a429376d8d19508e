// A scheduler and the fake executor together, for tests.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "engine/check_kv.h"
#include "engine/fake_executor.h"
#include "engine/scheduler.h"
#include "model/presets.h"

namespace lapidary {

// As the fake executor hashes, so that the pages of both can be compared.
inline constexpr uint64_t kHashSeed = 0;

inline ModelPlan TinyPlan() {
  return MakeModelPlan(ParseModelConfig(*PresetConfig("tiny-e"), "tiny-e").value()).value();
}

// Scheduler and fake executor together, stepping plainly or one step ahead.
class Harness {
 public:
  Harness(int num_pages, const SchedulerLimits& limits, bool overlap,
          std::array<int, kNumKvGroups> tokens_per_page = {4, 8},
          const ModelPlan& plan = TinyPlan())
      : plan_(plan),
        layout_(MakeKvLayout(plan_, KvFormat::kF32, tokens_per_page)),
        executor_(plan_, layout_, num_pages),
        scheduler_(plan_, layout_, num_pages, limits, kHashSeed),
        kv_checker_(plan_, layout_),
        overlap_(overlap) {}

  Scheduler& scheduler() { return scheduler_; }
  FakeExecutor& executor() { return executor_; }
  int vocab_size() const { return plan_.vocab_size; }
  int window() const { return plan_.kv_groups[kSlidingGroup].window; }
  // That no step holds any more.
  size_t num_late() const { return late_.size(); }
  int num_in_flight() const { return static_cast<int>(in_flight_.size()); }

  static SequenceSpec Spec(std::vector<int32_t> prompt, int max_new_tokens) {
    SequenceSpec spec;
    spec.cache_points = {static_cast<int32_t>(prompt.size()) - 1};
    spec.prompt = std::move(prompt);
    spec.max_new_tokens = max_new_tokens;
    spec.sampling = std::make_shared<SamplingParams>();
    return spec;
  }

  Result<SequenceId> Add(SequenceSpec spec) {
    RETURN_IF_ERROR(scheduler_.Add(last_id_ + 1, std::move(spec)));
    return ++last_id_;
  }

  // One turn of the engine loop, after which some of the late sequences may go on; false when there
  // was nothing to do.
  bool Turn() {
    const bool has_run = Step();
    return MakeMasks(/*all=*/!has_run) || has_run;
  }

  // The same; late sequences stay late.
  bool Step() {
    while (in_flight_.size() < (overlap_ ? 2u : 1u)) {
      std::optional<StepPlan> plan = scheduler_.Plan();
      if (!plan) break;
      largest_step_ = std::max(largest_step_, plan->batch.token_ids.size());
      if (on_plan_) on_plan_(*plan);
      int num_outputs = 0;
      for (const SequenceStep& step : plan->batch.sequences) num_outputs += step.num_outputs;
      most_outputs_ = std::max(most_outputs_, num_outputs);
      const auto violation = kv_checker_.FindViolation(plan->batch, executor_.num_pages());
      EXPECT_FALSE(violation.has_value()) << violation->dump();
      executor_.Submit(plan->batch);
      in_flight_.push_back(std::move(*plan));
    }
    if (in_flight_.empty()) return false;
    StepOutput output = executor_.Collect();
    StepPlan plan = std::move(in_flight_.front());
    in_flight_.pop_front();
    last_shape_ = plan.shape;
    if (step_ms_) {
      const StepShape run = plan.ShapeRun(output);
      scheduler_.Observe(run, step_ms_(run));
    }
    for (SequenceProgress& progress : scheduler_.Complete(std::move(plan), std::move(output))) {
      for (const SampledToken& score : progress.prompt_logprobs) {
        EXPECT_TRUE(outputs_[progress.id].empty()) << "a score after a token";
        scored_ids_[progress.id].push_back(score.id);
        scores_[progress.id].push_back(score.logprob);
      }
      for (const SampledToken& token : progress.tokens) {
        outputs_[progress.id].push_back(token.id);
      }
      if (progress.finish) {
        EXPECT_TRUE(finished_.emplace(progress.id, *progress.finish).second)
            << progress.id << " ended twice";
      }
    }
    for (const LateMask& late : scheduler_.TakeLate()) {
      EXPECT_TRUE(late_.insert(late.id).second) << late.id;
      EXPECT_EQ(late.outputs.size(), outputs_[late.id].size());
    }
    return true;
  }

  // Every page that the prefix cache keeps holds what it is kept for, token by token. Says nothing
  // while steps are in flight: what they write is counted on and not there yet.
  void CheckKeptPages() const {
    if (!in_flight_.empty()) return;
    const KeptPages& kept = scheduler_.prefix_cache().kept();
    for (PageIndex page = 1; page < executor_.num_pages(); ++page) {
      const std::span<const uint64_t> hashes = kept.hashes(page);
      for (size_t token = 0; token < hashes.size(); ++token) {
        ASSERT_EQ(executor_.HashAt(page, static_cast<int32_t>(token)), hashes[token])
            << "page " << page << " of group " << kept.group(page) << ", token " << token;
      }
    }
  }

  // All or some of the late sequences may go on; false: there was none.
  bool MakeMasks(bool all) {
    const bool had_late = !late_.empty();
    std::erase_if(late_, [&](SequenceId id) {
      if (!all && lateness_() % 4 != 0) return false;
      scheduler_.TakeMask(id, nullptr, 1);
      return true;
    });
    return had_late;
  }

  void RunToEnd() {
    while (Turn()) {
    }
    EXPECT_FALSE(scheduler_.has_sequences());
  }

  std::map<SequenceId, std::vector<int32_t>> outputs_;
  std::map<SequenceId, std::vector<int32_t>> scored_ids_;
  std::map<SequenceId, std::vector<float>> scores_;
  std::map<SequenceId, FinishReason> finished_;
  size_t largest_step_ = 0;
  int most_outputs_ = 0;
  StepShape last_shape_;  // of the step collected last
  std::function<void(const StepPlan&)> on_plan_;
  std::function<double(const StepShape&)> step_ms_;  // the clock: how long a step takes

 private:
  const ModelPlan plan_;
  const KvLayout layout_;
  FakeExecutor executor_;
  Scheduler scheduler_;
  KvChecker kv_checker_;
  const bool overlap_;
  SequenceId last_id_ = 0;
  std::deque<StepPlan> in_flight_;
  std::set<SequenceId> late_;
  std::mt19937 lateness_{29};
};

inline std::vector<int32_t> RandomIds(std::mt19937& random, int count, int vocab_size) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocab_size);
  return ids;
}

// A device whose steps take a while, and longer with every row.
inline double FakeMilliseconds(const StepShape& shape) {
  return 10.0 + 0.5 * shape.num_rows() + 1e-4 * (shape.num_decode_keys + shape.num_chunk_keys);
}

}  // namespace lapidary
