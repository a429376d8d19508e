// The masks of steps whose rows are under a grammar: made on the host while the forward pass runs,
// and there when the sampler begins.
//
//   Submit:  forward pass queued -> Advance of the steps before -> Make -> sampler queued
//   Collect: Advance, unless a later step has already asked for it
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "device/device_memory.h"
#include "executor/slot_constraints.h"
#include "ops/cuda/sampling/sampling_types.h"

namespace lapidary::cuda {

// A sequence of a step whose sampled rows have masks.
struct MaskedSequence {
  int32_t sequence = 0;  // of the step
  int32_t slot = 0;
  int32_t first_sampled = 0;   // of the step's sampled rows
  int32_t first_mask_row = 0;  // of the step's masks
  int32_t num_rows = 0;
  // Filled in when the masks are made.
  uint32_t epoch = 0;    // of the slot's binding
  int32_t num_made = 0;  // rows with a mask; behind them `error` counts
  Error error = {};
};

class StepMasks {
 public:
  // For at most `max_rows` masks a step.
  StepMasks(int num_slots, int vocab_size, int max_rows);

  void Bind(std::span<const SlotBinding> bindings);
  // Gives up the grammars of all slots. No step is in flight.
  void Clear() { constraints_.Clear(); }

  // Masks for the rows of `sequences`; drafts(i) are those of the i-th. What is queued on `stream`
  // from now on finds them at masks(). Steps before have been advanced.
  template <typename Drafts>
  void Make(std::span<MaskedSequence> sequences, const Drafts& drafts, cudaStream_t stream) {
    Reserve(sequences.size());
    std::deque<grammar::Work> works = NewWorks();
    threads_.ParallelFor(std::ssize(sequences), 1, [&](int64_t begin, int64_t end, int thread_idx) {
      for (int64_t idx = begin; idx < end; ++idx) {
        MakeRows(sequences[idx], drafts(idx), works[thread_idx], made_[idx]);
      }
    });
    Upload(sequences, stream);
  }

  // What a step that is done has sampled.
  void Advance(std::span<MaskedSequence> sequences, const SampledRow* sampled);

  const uint32_t* masks() const { return device_.As<uint32_t>(); }
  int64_t num_bytes_for_test() const { return device_.num_bytes(); }

 private:
  void Reserve(size_t num_sequences);
  // What each thread may do for a step's masks.
  std::deque<grammar::Work> NewWorks() const;
  void MakeRows(MaskedSequence& sequence, std::span<const int32_t> drafts, grammar::Work& work,
                RowMasks& made);
  void Upload(std::span<const MaskedSequence> sequences, cudaStream_t stream);

  const int num_words_;
  SlotConstraints constraints_;
  std::vector<uint32_t> epochs_;  // by slot: how often it was bound
  std::vector<RowMasks> made_;    // by sequence, for their memory
  ThreadPool threads_;
  // One of each: a step's masks are made when the steps before it are done.
  PinnedBuffer staging_;  // [max_rows, num_words]
  DeviceBuffer device_;   // [max_rows, num_words]
  Stream copies_;         // beside the forward pass
  Event copied_;
};

}  // namespace lapidary::cuda
