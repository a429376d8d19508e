// An executor without a model: steps take as long as a card takes for them, tokens are made up.
//
// No weights are read and nothing is computed. Of each token that a sequence has cached, the page
// of the full group remembers a hash of the text up to it; the next token is a function of that
// hash. So answers depend on the tokens before them alone, whether those were computed, found in
// the prefix cache or resumed, and a page that is mixed up shows in the answers. Grammars, stop
// tokens and the tokens that a request allows or forbids are heeded (made_up_text.h); temperature,
// penalties and seeds change nothing.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "executor/executor.h"
#include "executor/simulated/made_up_text.h"
#include "executor/simulated/simulated_clock.h"
#include "executor/simulated/step_timings.h"
#include "executor/slot_constraints.h"
#include "executor/slot_tables.h"

namespace lapidary::simulated {

// What a user asks for.
struct SimulationOptions {
  const Card* card = nullptr;
  double speed = 1.0;       // times the card's
  Vocabulary vocabulary{};  // its size is the model's; without words any token is an answer
};

struct SimulatedExecutorOptions {
  KvLayout kv_layout;
  int num_pages = 0;  // scratch page included
  ModelTimings timings;
  Vocabulary vocabulary;
  std::shared_ptr<Clock> clock;
};

class SimulatedExecutor : public Executor {
 public:
  SimulatedExecutor(const ModelPlan& plan, SimulatedExecutorOptions options);

  const ModelPlan& plan() const override { return plan_; }
  const KvLayout& kv_layout() const override { return options_.kv_layout; }
  int num_pages() const override { return options_.num_pages; }
  // A step begins when it is submitted and the one before it has ended.
  void Submit(StepBatch batch) override;
  StepOutput Collect() override;
  void ForgetSlots() override { constraints_.Clear(); }

  // When the oldest uncollected step ends, by the clock.
  double next_end_ms() const { return submitted_.front().end_ms; }

 private:
  struct Slot {
    std::shared_ptr<const SamplingParams> sampling;  // null: nothing is sampled
    int32_t num_score_top = 0;
    int32_t prompt_len = 0;
    int32_t length = 0;
    int32_t last_token = 0;
    bool has_failed = false;  // or was late
  };
  struct SubmittedStep {
    StepBatch batch;
    double ms = 0.0;
    double end_ms = 0.0;
  };

  void BindSlots(const StepBatch& batch);
  // The place of a cached token's hash.
  TextHash& HashAt(int32_t slot, int32_t position);
  void RunSequence(const SequenceStep& sequence, std::span<const int32_t> ids,
                   std::span<const int32_t> scored_ids, grammar::Work& mask_work,
                   SequenceOutput& output);
  void Sample(const SequenceStep& sequence, TextHash text, int32_t position,
              grammar::Work& mask_work, SequenceOutput& output);

  const ModelPlan plan_;
  const SimulatedExecutorOptions options_;
  const int32_t window_;
  // [page][token of a page of the full group]; a page that never held any has none.
  std::vector<std::vector<TextHash>> hashes_;
  std::vector<Slot> slots_;
  SlotTables tables_;
  SlotConstraints constraints_;
  RowMasks masks_;
  std::deque<SubmittedStep> submitted_;
  double free_at_ms_ = 0.0;
};

}  // namespace lapidary::simulated
