#include "executor/simulated/simulated_executor.h"

#include <algorithm>

#include "base/check.h"

namespace lapidary::simulated {

SimulatedExecutor::SimulatedExecutor(const ModelPlan& plan, SimulatedExecutorOptions options)
    : plan_(plan),
      options_(std::move(options)),
      window_(plan.kv_groups[kSlidingGroup].window),
      hashes_(options_.num_pages) {
  CHECK(options_.clock != nullptr);
  CHECK_EQ(options_.vocabulary.size, plan_.vocab_size);
}

void SimulatedExecutor::Submit(StepBatch batch) {
  CHECK_LT(submitted_.size(), 2u);
  CHECK(!batch.return_logits && !batch.return_drafts) << "there is no model that could have any";
  const double ms = options_.timings.Milliseconds(WorkOf(batch, window_));
  const double end_ms = std::max(options_.clock->NowMs(), free_at_ms_) + ms;
  submitted_.push_back({std::move(batch), ms, end_ms});
  free_at_ms_ = end_ms;
}

void SimulatedExecutor::BindSlots(const StepBatch& batch) {
  for (const SlotBinding& binding : batch.bindings) {
    if (binding.slot >= std::ssize(slots_)) slots_.resize(binding.slot + 1);
    constraints_.Reserve(slots_.size());
    constraints_.Bind(binding);
    tables_.Forget(binding.slot);
    slots_[binding.slot] = {.sampling = binding.sampling,
                            .num_score_top = binding.num_score_top,
                            .prompt_len = binding.prompt_len};
  }
  tables_.Set(batch.table_entries);
}

TextHash& SimulatedExecutor::HashAt(int32_t slot, int32_t position) {
  const int tokens = options_.kv_layout.tokens_per_page[kFullGroup];
  const PageIndex page = tables_.Of(slot, kFullGroup).PageOf(position / tokens);
  CHECK(page > kScratchPage && page < options_.num_pages) << page << " at position " << position;
  std::vector<TextHash>& hashes = hashes_[page];
  if (hashes.empty()) hashes.resize(tokens, kNoText);
  return hashes[position % tokens];
}

void SimulatedExecutor::Sample(const SequenceStep& sequence, TextHash text, int32_t position,
                               grammar::Work& mask_work, SequenceOutput& output) {
  Slot& slot = slots_[sequence.slot];
  const auto fail = [&](const Error& error) {
    slot.has_failed = true;
    output.is_late = error.kind == ErrorKind::kBusy;
    if (output.is_late) return;
    output.error = error.message;
    output.blames_request = error.kind == ErrorKind::kInvalid;
  };
  const bool is_constrained = constraints_.IsActive(sequence.slot);
  if (is_constrained) {
    constraints_.MakeMasks(sequence.slot, {}, mask_work, &masks_);
    if (masks_.num_made == 0) return fail(masks_.error);
  }
  const uint64_t draw_number = DrawNumber(position, slot.prompt_len);
  const int32_t id = ChooseToken(options_.vocabulary, text, draw_number, *slot.sampling,
                                 is_constrained ? masks_.Mask(0) : std::span<const uint32_t>());
  if (id < 0) {
    return fail(Error{"no token may come here: what the request allows excludes all of them",
                      ErrorKind::kInvalid});
  }
  if (is_constrained) {
    const Status moved = constraints_.Advance(sequence.slot, id, mask_work);
    if (!moved.ok()) return fail(moved.error());
  }
  output.tokens.push_back(WithLogprobs(options_.vocabulary, text, id, slot.sampling->num_logprobs));
  slot.last_token = id;
}

void SimulatedExecutor::RunSequence(const SequenceStep& sequence, std::span<const int32_t> ids,
                                    std::span<const int32_t> scored_ids, grammar::Work& mask_work,
                                    SequenceOutput& output) {
  Slot& slot = slots_.at(sequence.slot);
  CHECK_EQ(sequence.num_drafts, 0);
  // The step was planned before the failure was seen.
  if (slot.has_failed && ids[0] == kTokenFromSlot) return;
  const int32_t first_position = FirstPosition(ids[0], sequence.num_cached, slot.length);
  TextHash text = first_position > 0 ? HashAt(sequence.slot, first_position - 1) : kNoText;
  const int32_t first_output = sequence.num_rows - sequence.num_outputs;
  for (int32_t row = 0; row < sequence.num_rows; ++row) {
    text = Append(text, ids[row] == kTokenFromSlot ? slot.last_token : ids[row]);
    HashAt(sequence.slot, first_position + row) = text;
    const int32_t score = row - first_output;
    if (score >= 0 && score < sequence.num_scored && !slot.has_failed) {
      output.scores.push_back(
          WithLogprobs(options_.vocabulary, text, scored_ids[score], slot.num_score_top));
    }
  }
  slot.length = LengthAfter(first_position, sequence.num_rows, 0, 0);
  if (!sequence.samples || slot.has_failed) return;
  CHECK(slot.sampling != nullptr);
  Sample(sequence, text, slot.length - 1, mask_work, output);
}

StepOutput SimulatedExecutor::Collect() {
  CHECK(!submitted_.empty());
  const SubmittedStep step = std::move(submitted_.front());
  submitted_.pop_front();
  const StepBatch& batch = step.batch;
  BindSlots(batch);
  for (const PageCopy& copy : batch.page_copies) hashes_[copy.to] = hashes_[copy.from];
  StepOutput output;
  output.sequences.resize(batch.sequences.size());
  grammar::Work mask_work(kMaskStepsPerThread);
  const std::span<const int32_t> token_ids = batch.token_ids;
  const std::span<const int32_t> scored_ids = batch.scored_ids;
  size_t row = 0;
  size_t score = 0;
  for (size_t idx = 0; idx < batch.sequences.size(); ++idx) {
    const SequenceStep& sequence = batch.sequences[idx];
    RunSequence(sequence, token_ids.subspan(row, sequence.num_rows),
                scored_ids.subspan(score, sequence.num_scored), mask_work, output.sequences[idx]);
    row += sequence.num_rows;
    score += sequence.num_scored;
  }
  options_.clock->WaitUntilMs(step.end_ms);
  output.device_ms = step.ms;
  return output;
}

}  // namespace lapidary::simulated
