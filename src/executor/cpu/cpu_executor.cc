#include "executor/cpu/cpu_executor.h"

#include "base/check.h"

namespace lapidary::cpu {

Result<std::unique_ptr<CpuExecutor>> CpuExecutor::Create(const ModelPlan& plan,
                                                         std::shared_ptr<const TensorSource> source,
                                                         const CpuExecutorOptions& options) {
  ASSIGN_OR_RETURN(ModelWeights weights, BindWeights(plan, *source));
  KvLayout layout = options.kv_layout ? *options.kv_layout : MakeKvLayout(plan, sizeof(float));
  ASSIGN_OR_RETURN(KvMemory kv, KvMemory::Allocate(layout, options.num_pages));
  return std::unique_ptr<CpuExecutor>(new CpuExecutor(plan, std::move(source), std::move(weights),
                                                      std::move(layout), std::move(kv), options));
}

CpuExecutor::CpuExecutor(const ModelPlan& plan, std::shared_ptr<const TensorSource> source,
                         ModelWeights weights, KvLayout layout, KvMemory kv,
                         const CpuExecutorOptions& options)
    : plan_(plan),
      source_(std::move(source)),
      weights_(std::move(weights)),
      layout_(std::move(layout)),
      kv_(std::move(kv)),
      skip_unneeded_rows_(options.skip_unneeded_rows),
      threads_(options.num_threads),
      forward_(plan_, weights_, layout_, kv_, threads_) {
  for (int thread_idx = 0; thread_idx < threads_.num_threads(); ++thread_idx) {
    samplers_.push_back(std::make_unique<Sampler>(plan_.vocab_size));
  }
  worker_ = std::thread([this] { WorkerLoop(); });
}

CpuExecutor::~CpuExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void CpuExecutor::Submit(StepBatch batch) {
  {
    const std::lock_guard lock(mutex_);
    CHECK_LT(num_uncollected_, 2);
    ++num_uncollected_;
    submitted_.push_back(std::move(batch));
  }
  changed_.notify_all();
}

StepOutput CpuExecutor::Collect() {
  std::unique_lock lock(mutex_);
  CHECK_GT(num_uncollected_, 0);
  changed_.wait(lock, [&] { return !finished_.empty(); });
  StepOutput output = std::move(finished_.front());
  finished_.pop_front();
  --num_uncollected_;
  return output;
}

void CpuExecutor::WorkerLoop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !submitted_.empty(); });
    if (stopping_) return;
    StepBatch batch = std::move(submitted_.front());
    submitted_.pop_front();
    lock.unlock();
    StepOutput output = RunStep(batch);
    lock.lock();
    finished_.push_back(std::move(output));
    changed_.notify_all();
  }
}

StepOutput CpuExecutor::RunStep(StepBatch& batch) {
  for (const PageCopy& copy : batch.page_copies) kv_.Copy(layout_, copy);
  size_t first_row = 0;
  for (const SequenceStep& sequence : batch.sequences) {
    if (sequence.slot >= static_cast<int32_t>(last_token_.size())) {
      last_token_.resize(sequence.slot + 1, 0);
    }
    int32_t& first_token = batch.token_ids[first_row];
    if (first_token == kTokenFromSlot) first_token = last_token_[sequence.slot];
    first_row += sequence.num_rows;
  }
  forward_.Begin(batch);
  RunDecoder(plan_, skip_unneeded_rows_, forward_);
  StepOutput output;
  output.sequences.resize(batch.sequences.size());
  ScoreOutputs(batch, forward_.logits(), output);
  SampleOutputs(batch, forward_.logits(), output);
  if (batch.return_logits) output.logits.assign(forward_.logits().begin(), forward_.logits().end());
  return output;
}

void CpuExecutor::ScoreOutputs(const StepBatch& batch, std::span<const float> logits,
                               StepOutput& output) {
  struct Row {
    size_t sequence_idx;
    size_t score_idx;
    int64_t output_idx;
  };
  std::vector<Row> rows;
  int64_t first_output = 0;
  for (size_t idx = 0; idx < batch.sequences.size(); ++idx) {
    const SequenceStep& sequence = batch.sequences[idx];
    const size_t num_scores = sequence.scored_ids.size();
    output.sequences[idx].scores.resize(num_scores);
    for (size_t score_idx = 0; score_idx < num_scores; ++score_idx) {
      rows.push_back({idx, score_idx, first_output + static_cast<int64_t>(score_idx)});
    }
    first_output += sequence.num_outputs;
  }
  if (rows.empty()) return;
  const size_t vocab_size = static_cast<size_t>(plan_.vocab_size);
  std::vector<std::string> errors(rows.size());
  threads_.ParallelFor(
      static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end, int thread_idx) {
        for (int64_t idx = begin; idx < end; ++idx) {
          const auto& [sequence_idx, score_idx, output_idx] = rows[idx];
          const SequenceStep& sequence = batch.sequences[sequence_idx];
          auto score = samplers_[thread_idx]->Score(
              logits.subspan(static_cast<size_t>(output_idx) * vocab_size, vocab_size),
              sequence.scored_ids[score_idx], sequence.num_score_top);
          if (score.ok()) {
            output.sequences[sequence_idx].scores[score_idx] = *score;
          } else {
            errors[idx] = score.error().message;
          }
        }
      });
  for (size_t idx = 0; idx < rows.size(); ++idx) {
    if (!errors[idx].empty()) output.sequences[rows[idx].sequence_idx].error = errors[idx];
  }
}

void CpuExecutor::SampleSequence(const SequenceStep& sequence, const float* rows,
                                 const int32_t* drafts, Sampler& sampler, SequenceOutput& output) {
  static const PenaltyState kNoHistory;
  const int32_t num_candidates = sequence.num_drafts + 1;
  CHECK_LE(num_candidates + std::ssize(sequence.scored_ids), sequence.num_outputs);
  rows += int64_t{sequence.num_outputs - num_candidates} * plan_.vocab_size;
  for (int32_t row = 0; row < num_candidates; ++row) {
    const auto token = sampler.Sample(
        {rows + int64_t{row} * plan_.vocab_size, static_cast<size_t>(plan_.vocab_size)},
        *sequence.sampling, sequence.history ? *sequence.history : kNoHistory,
        sequence.sample_position + row);
    if (!token.ok()) {
      output.error = token.error().message;
      return;
    }
    output.tokens.push_back(*token);
    last_token_[sequence.slot] = token->id;
    if (sequence.history) sequence.history->AddOutput(token->id);
    if (row == sequence.num_drafts || drafts[row] != token->id) return;
  }
}

void CpuExecutor::SampleOutputs(const StepBatch& batch, std::span<const float> logits,
                                StepOutput& output) {
  // Where each sequence's outputs and rows begin.
  std::vector<std::pair<int64_t, int64_t>> begins;
  int64_t num_outputs = 0;
  int64_t num_rows = 0;
  for (const SequenceStep& sequence : batch.sequences) {
    begins.emplace_back(num_outputs, num_rows);
    num_outputs += sequence.num_outputs;
    num_rows += sequence.num_rows;
  }
  threads_.ParallelFor(static_cast<int64_t>(batch.sequences.size()), 1,
                       [&](int64_t begin, int64_t end, int thread_idx) {
                         for (int64_t idx = begin; idx < end; ++idx) {
                           const SequenceStep& sequence = batch.sequences[idx];
                           if (!sequence.sampling || sequence.num_outputs == 0) continue;
                           const int64_t end_row = begins[idx].second + sequence.num_rows;
                           SampleSequence(sequence,
                                          logits.data() + begins[idx].first * plan_.vocab_size,
                                          batch.token_ids.data() + end_row - sequence.num_drafts,
                                          *samplers_[thread_idx], output.sequences[idx]);
                         }
                       });
}

}  // namespace lapidary::cpu
