#include "executor/cuda/step_masks.h"

#include <algorithm>
#include <thread>

#include "base/check.h"
#include "executor/cuda/memory_needs.h"

namespace lapidary::cuda {
namespace {

constexpr const char* kPurpose = "masks of constrained rows";
constexpr int kMaxThreads = 8;  // More would take the cores of the server's own threads.

int NumThreads() {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / 2, 1, kMaxThreads);
}

}  // namespace

StepMasks::StepMasks(int num_slots, int vocab_size, int max_rows)
    : num_words_(MaskWords(vocab_size)),
      epochs_(num_slots),
      threads_(NumThreads()),
      staging_(MaskBytes(vocab_size, max_rows), kPurpose),
      device_(MaskBytes(vocab_size, max_rows), kPurpose) {
  constraints_.Reserve(num_slots);
}

void StepMasks::Bind(std::span<const SlotBinding> bindings) {
  for (const SlotBinding& binding : bindings) {
    constraints_.Bind(binding);
    ++epochs_[binding.slot];
  }
}

void StepMasks::Reserve(size_t num_sequences) {
  if (made_.size() < num_sequences) made_.resize(num_sequences);
}

std::deque<grammar::Work> StepMasks::NewWorks() const {
  std::deque<grammar::Work> works;
  while (std::ssize(works) < threads_.num_threads()) works.emplace_back(kMaskStepsPerThread);
  return works;
}

void StepMasks::MakeRows(MaskedSequence& sequence, std::span<const int32_t> drafts,
                         grammar::Work& work, RowMasks& made) {
  CHECK_EQ(static_cast<int32_t>(drafts.size()) + 1, sequence.num_rows);
  sequence.epoch = epochs_[sequence.slot];
  sequence.num_made = sequence.num_rows;
  uint32_t* const to = staging_.As<uint32_t>() + int64_t{sequence.first_mask_row} * num_words_;
  const int64_t end = int64_t{sequence.num_rows} * num_words_;
  int64_t num_words = 0;
  // Behind an answer's end any token may come: the row was planned before the end was seen.
  if (constraints_.IsActive(sequence.slot)) {
    constraints_.MakeMasks(sequence.slot, drafts, work, &made);
    sequence.num_made = made.num_made;
    sequence.error = made.error;
    CHECK_EQ(made.num_words, num_words_);
    num_words = int64_t{made.num_made} * num_words_;
    std::copy_n(made.words.data(), num_words, to);
  }
  std::fill(to + num_words, to + end, ~0u);
}

void StepMasks::Upload(std::span<const MaskedSequence> sequences, cudaStream_t stream) {
  int64_t num_rows = 0;
  for (const MaskedSequence& sequence : sequences) num_rows += sequence.num_rows;
  const int64_t num_bytes = num_rows * num_words_ * int64_t{sizeof(uint32_t)};
  CHECK_LE(num_bytes, device_.num_bytes());
  LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(device_.As<void>(), staging_.As<void>(), num_bytes,
                                      cudaMemcpyHostToDevice, copies_.get()));
  copied_.Record(copies_.get());
  copied_.MakeWait(stream);
}

void StepMasks::Advance(std::span<MaskedSequence> sequences, const SampledRow* sampled) {
  grammar::Work work(kMaskStepsPerThread);
  for (MaskedSequence& sequence : sequences) {
    if (sequence.epoch != epochs_[sequence.slot]) continue;  // Another request has the slot.
    const SampledRow* rows = sampled + sequence.first_sampled;
    const int32_t num_accepted = rows[0].num_accepted;
    for (int32_t row = 0; row < num_accepted && constraints_.IsActive(sequence.slot); ++row) {
      if (row >= sequence.num_made || rows[row].status != SamplingStatus::kOk) break;
      const Status moved = constraints_.Advance(sequence.slot, rows[row].id, work);
      if (!moved.ok()) {
        sequence.error = moved.error();
        sequence.num_made = row;
      }
    }
  }
}

}  // namespace lapidary::cuda
