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
    CHECK(!submitted_ && !finished_) << "one step at a time";
    submitted_ = std::move(batch);
  }
  changed_.notify_all();
}

StepOutput CpuExecutor::Collect() {
  std::unique_lock lock(mutex_);
  CHECK(submitted_ || finished_) << "nothing was submitted";
  changed_.wait(lock, [&] { return finished_.has_value(); });
  StepOutput output = std::move(*finished_);
  finished_.reset();
  return output;
}

void CpuExecutor::WorkerLoop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || (submitted_ && !finished_); });
    if (stopping_) return;
    const StepBatch batch = *std::move(submitted_);
    lock.unlock();
    StepOutput output = RunStep(batch);
    lock.lock();
    submitted_.reset();
    finished_ = std::move(output);
    changed_.notify_all();
  }
}

StepOutput CpuExecutor::RunStep(const StepBatch& batch) {
  forward_.Begin(batch);
  RunDecoder(plan_, skip_unneeded_rows_, forward_);
  StepOutput output;
  output.sequences.resize(batch.sequences.size());
  SampleOutputs(batch, forward_.logits(), output);
  if (batch.return_logits) output.logits.assign(forward_.logits().begin(), forward_.logits().end());
  return output;
}

void CpuExecutor::SampleOutputs(const StepBatch& batch, std::span<const float> logits,
                                StepOutput& output) {
  // First output row of each sequence in `logits`.
  std::vector<int64_t> first_row(batch.sequences.size());
  int64_t num_rows = 0;
  for (size_t idx = 0; idx < batch.sequences.size(); ++idx) {
    first_row[idx] = num_rows;
    num_rows += static_cast<int64_t>(batch.sequences[idx].output_rows.size());
  }
  const auto sample_sequence = [&](int64_t sequence_idx, Sampler& sampler) {
    const SequenceStep& sequence = batch.sequences[sequence_idx];
    if (!sequence.sampling) return;
    SequenceOutput& result = output.sequences[sequence_idx];
    static const PenaltyState kNoHistory;
    const SampleRequest& request = *sequence.sampling;
    const PenaltyState& history = request.history ? *request.history : kNoHistory;
    for (size_t row = 0; row < sequence.output_rows.size(); ++row) {
      const auto row_logits =
          logits.subspan((first_row[sequence_idx] + row) * plan_.vocab_size, plan_.vocab_size);
      const auto token =
          sampler.Sample(row_logits, *request.params, history, request.first_position + row);
      if (!token.ok()) {
        result.error = token.error().message;
        return;
      }
      result.tokens.push_back(*token);
    }
  };
  threads_.ParallelFor(static_cast<int64_t>(batch.sequences.size()), 1,
                       [&](int64_t begin, int64_t end, int thread_idx) {
                         for (int64_t idx = begin; idx < end; ++idx) {
                           sample_sequence(idx, *samplers_[thread_idx]);
                         }
                       });
}

}  // namespace lapidary::cpu
