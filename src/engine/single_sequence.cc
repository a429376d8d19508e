#include "engine/single_sequence.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lapidary {
namespace {

constexpr int32_t kSlack = 1;  // A drafter may look one token behind the window.

}  // namespace

SingleSequence::SingleSequence(Executor& executor, int32_t max_chunk,
                               std::shared_ptr<const SamplingParams> sampling, int32_t prompt_len,
                               std::shared_ptr<const SoftTokenRuns> media,
                               std::shared_ptr<const Adapter> adapter)
    : executor_(executor),
      max_chunk_(max_chunk),
      pool_(executor.num_pages()),
      pages_(executor.plan(), executor.kv_layout(), pool_, kSlack),
      media_(std::move(media)),
      binding_(SlotBinding{.sampling = std::move(sampling),
                           .prompt_len = prompt_len,
                           .media = media_,
                           .adapter = std::move(adapter)}) {
  CHECK(!media_ || executor.takes_media());
  CHECK(!binding_->adapter || executor.takes_adapters());
  CHECK(!binding_->sampling || !binding_->sampling->has_penalties());
}

int32_t SingleSequence::ChunkRows(size_t num_left) const {
  const auto num_rows = static_cast<int32_t>(std::min<size_t>(num_left, max_chunk_));
  if (!media_ || !executor_.plan().images_see_both_ways) return num_rows;
  return RowsWithWholeImages(*media_, pages_.length(), num_rows);
}

Result<StepOutput> SingleSequence::Run(std::span<const int32_t> ids, SequenceStep step,
                                       StepBatch batch) {
  step.num_rows = static_cast<int32_t>(ids.size());
  step.num_cached = pages_.length();
  if (step.num_rows > executor_.max_rows()) {
    return MakeError(
        "an image of {} tokens is computed in one step, and a step has room for {}: ask for fewer "
        "tokens per image",
        step.num_rows, executor_.max_rows());
  }
  if (!pages_.Reserve(step.num_rows)) {
    return MakeError("the KV cache is full at {} tokens", pages_.length());
  }
  if (binding_) batch.bindings.push_back(*std::exchange(binding_, std::nullopt));
  pages_.TakeTableChanges(step.slot, batch.table_entries);
  batch.token_ids.assign(ids.begin(), ids.end());
  batch.sequences.push_back(step);
  StepOutput output = executor_.Run(std::move(batch));
  pages_.Commit(static_cast<int32_t>(ids.size()));
  return output;
}

Status SingleSequence::Append(std::span<const int32_t> ids,
                              const std::function<Status(std::span<const float>)>& on_logits) {
  while (!ids.empty()) {
    const auto chunk = ids.first(ChunkRows(ids.size()));
    SequenceStep step;
    step.num_outputs = on_logits ? static_cast<int32_t>(chunk.size()) : 0;
    StepBatch batch;
    batch.return_logits = on_logits != nullptr;
    ASSIGN_OR_RETURN(const StepOutput output, Run(chunk, step, std::move(batch)));
    if (on_logits) RETURN_IF_ERROR(on_logits(output.logits));
    ids = ids.subspan(chunk.size());
  }
  return {};
}

Result<SampledToken> SingleSequence::AppendAndSample(std::span<const int32_t> ids) {
  while (static_cast<size_t>(ChunkRows(ids.size())) < ids.size()) {
    const auto chunk = ids.first(ChunkRows(ids.size()));
    RETURN_IF_ERROR(Append(chunk, nullptr));
    ids = ids.subspan(chunk.size());
  }
  SequenceStep step;
  step.num_outputs = 1;
  step.samples = true;
  ASSIGN_OR_RETURN(const StepOutput output, Run(ids, step, {}));
  const SequenceOutput& sequence = output.sequences[0];
  if (sequence.error) return MakeError("{}", *sequence.error);
  return sequence.tokens[0];
}

Result<StepOutput> SingleSequence::DraftRound(int32_t num_drafts) {
  CHECK(num_drafts > 0 && num_drafts <= executor_.max_drafts());
  std::vector<int32_t> ids(1 + num_drafts, kTokenFromDrafter);
  ids[0] = kTokenFromSlot;
  SequenceStep step;
  step.num_outputs = 1 + num_drafts;
  step.samples = true;
  step.num_drafts = num_drafts;
  StepBatch batch;
  batch.return_drafts = true;
  ASSIGN_OR_RETURN(StepOutput output, Run(ids, step, std::move(batch)));
  if (output.sequences[0].error) return MakeError("{}", *output.sequences[0].error);
  return output;
}

}  // namespace lapidary
