#include "engine/single_sequence.h"

#include <algorithm>

namespace lapidary {

SingleSequence::SingleSequence(Executor& executor, int32_t max_chunk)
    : executor_(executor),
      max_chunk_(max_chunk),
      pool_(executor.num_pages()),
      pages_(executor.plan(), executor.kv_layout(), pool_) {}

Result<StepOutput> SingleSequence::Step(std::span<const int32_t> ids, bool all_logits,
                                        const SampleRequest* sampling) {
  const int32_t num_rows = static_cast<int32_t>(ids.size());
  if (!pages_.Reserve(num_rows)) {
    return MakeError("the KV cache is full at {} tokens", pages_.length());
  }
  StepBatch batch;
  SequenceStep& step = batch.sequences.emplace_back();
  step.num_cached = pages_.length();
  step.token_ids.assign(ids.begin(), ids.end());
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    step.pages[group_idx] = pages_.table(group_idx);
  }
  if (all_logits) {
    for (int32_t row = 0; row < num_rows; ++row) step.output_rows.push_back(row);
    batch.return_logits = true;
  }
  if (sampling != nullptr) {
    step.output_rows = {num_rows - 1};
    step.sampling = *sampling;
  }
  StepOutput output = executor_.Run(std::move(batch));
  pages_.Commit(num_rows);
  return output;
}

Status SingleSequence::Append(std::span<const int32_t> ids,
                              const std::function<Status(std::span<const float>)>& on_logits) {
  while (!ids.empty()) {
    const auto chunk = ids.first(std::min<size_t>(ids.size(), max_chunk_));
    ASSIGN_OR_RETURN(const StepOutput output, Step(chunk, on_logits != nullptr, nullptr));
    if (on_logits) RETURN_IF_ERROR(on_logits(output.logits));
    ids = ids.subspan(chunk.size());
  }
  return {};
}

Result<SampledToken> SingleSequence::AppendAndSample(std::span<const int32_t> ids,
                                                     const SampleRequest& sampling) {
  const size_t last_chunk = (ids.size() - 1) % max_chunk_ + 1;
  RETURN_IF_ERROR(Append(ids.first(ids.size() - last_chunk), nullptr));
  ASSIGN_OR_RETURN(const StepOutput output, Step(ids.last(last_chunk), false, &sampling));
  const SequenceOutput& sequence = output.sequences[0];
  if (sequence.error) return MakeError("{}", *sequence.error);
  return sequence.tokens[0];
}

}  // namespace lapidary
