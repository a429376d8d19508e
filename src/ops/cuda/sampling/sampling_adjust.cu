// What a request asks of its logits before a draw, and putting back what was there: logprobs are
// those of the logits as they came.
#include "ops/cuda/sampling/sampling_kernels.h"
#include "ops/cuda/sampling/sampling_rows.cuh"

namespace lapidary::cuda {
namespace {

__device__ float Penalize(const SamplingSlot& slot, float logit, int output_count) {
  using namespace draw;
  logit = logit > 0 ? Div(logit, slot.repetition_penalty) : Mul(logit, slot.repetition_penalty);
  if (output_count == 0) return logit;
  logit = Add(logit, -Mul(slot.frequency_penalty, static_cast<float>(output_count)));
  return Add(logit, -slot.presence_penalty);
}

__device__ const SamplingBias* Biases(const SamplingCall& call, const SamplingSlot& slot) {
  return reinterpret_cast<const SamplingBias*>(call.lists + slot.biases_begin);
}

// The values that a row's adjustments replaced: counts, then tokens that its slot's history does
// not hold (drafts of earlier rows of the round) with their values, then one for every list entry.
struct Replaced {
  int32_t* words;
  const SamplingSlot& slot;

  __device__ Replaced(const SamplingCall& call, const SamplingRow& spec, const SamplingSlot& slot_)
      : words(call.replaced + spec.replaced_begin), slot(slot_) {}
  __device__ int32_t& num_history() const { return words[0]; }
  __device__ int32_t& num_unlisted() const { return words[1]; }
  __device__ int32_t& unlisted_id(int idx) const { return words[2 + idx]; }
  __device__ float& unlisted(int idx) const { return At(2 + kMaxDrafts + idx); }
  __device__ float& suppressed(int idx) const { return At(kLists + idx); }
  __device__ float& bias(int idx) const { return At(kLists + slot.num_suppressed + idx); }
  __device__ float& history(int idx) const {
    return At(kLists + slot.num_suppressed + slot.num_biases + idx);
  }

 private:
  static constexpr int kLists = 2 + 2 * kMaxDrafts;
  __device__ float& At(int word) const { return reinterpret_cast<float*>(words)[word]; }
};

__global__ void __launch_bounds__(kScanThreads) AdjustKernel(SamplingCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const auto [row_idx, spec] = RowOfCall(call, blockIdx.x);
  if (!IsHere(call, spec) || spec.scored_id >= 0) return;
  const SamplingSlot& slot = call.slots[spec.slot];
  const Replaced replaced(call, spec, slot);
  float* row = RowLogits(call, spec);
  // Lists may name an id twice: each keeps what it saw, and the restoring goes backwards.
  if (threadIdx.x == 0) {
    for (int idx = 0; idx < slot.num_suppressed; ++idx) {
      const int32_t id = call.lists[slot.suppressed_begin + idx];
      replaced.suppressed(idx) = row[id];
      row[id] = -kInfinity;
    }
  }
  __syncthreads();
  const SamplingBias* biases = Biases(call, slot);
  for (int idx = threadIdx.x; idx < slot.num_biases; idx += kScanThreads) {
    const int32_t id = biases[idx].id;
    replaced.bias(idx) = row[id];
    if (idx > 0 && biases[idx - 1].id == id) continue;  // The first of equals adds them all.
    float logit = row[id];
    for (int same = idx; same < slot.num_biases && biases[same].id == id; ++same) {
      logit = draw::Add(logit, biases[same].bias);
    }
    row[id] = logit;
  }
  __syncthreads();
  if (!slot.has_penalties) return;

  // What earlier rows of the round stand for counts as said.
  __shared__ int32_t drafts[kMaxDrafts];
  __shared__ int is_listed[kMaxDrafts];
  const int num_drafts = spec.rows_before;
  if (threadIdx.x < num_drafts) {
    drafts[threadIdx.x] = call.spec[row_idx - num_drafts + threadIdx.x].draft;
    is_listed[threadIdx.x] = 0;
  }
  __syncthreads();
  const SamplingHistory* history = History(call, slot);
  const int num_history = call.states[spec.slot].num_history;
  for (int idx = threadIdx.x; idx < num_history; idx += kScanThreads) {
    const SamplingHistory entry = history[idx];
    int output_count = entry.output_count;
    for (int draft = 0; draft < num_drafts; ++draft) {
      if (drafts[draft] != entry.id) continue;
      ++output_count;
      is_listed[draft] = 1;
    }
    replaced.history(idx) = row[entry.id];
    row[entry.id] = Penalize(slot, row[entry.id], output_count);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  int num_unlisted = 0;
  for (int draft = 0; draft < num_drafts; ++draft) {
    if (is_listed[draft]) continue;
    const int32_t id = drafts[draft];
    int output_count = 0;
    for (int same = draft; same < num_drafts; ++same) {
      if (drafts[same] != id) continue;
      ++output_count;
      is_listed[same] = 1;
    }
    replaced.unlisted_id(num_unlisted) = id;
    replaced.unlisted(num_unlisted++) = row[id];
    row[id] = Penalize(slot, row[id], output_count);
  }
  replaced.num_history() = num_history;
  replaced.num_unlisted() = num_unlisted;
}

__global__ void __launch_bounds__(kScanThreads) RestoreKernel(SamplingCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const SamplingRow spec = RowOfCall(call, blockIdx.x).spec;
  if (!IsHere(call, spec) || spec.scored_id >= 0) return;
  const SamplingSlot& slot = call.slots[spec.slot];
  const Replaced replaced(call, spec, slot);
  float* row = RowLogits(call, spec);
  if (slot.has_penalties) {
    for (int idx = threadIdx.x; idx < replaced.num_unlisted(); idx += kScanThreads) {
      row[replaced.unlisted_id(idx)] = replaced.unlisted(idx);
    }
    const SamplingHistory* history = History(call, slot);
    const int num_history = replaced.num_history();
    for (int idx = threadIdx.x; idx < num_history; idx += kScanThreads) {
      row[history[idx].id] = replaced.history(idx);
    }
    __syncthreads();
  }
  const SamplingBias* biases = Biases(call, slot);
  for (int idx = threadIdx.x; idx < slot.num_biases; idx += kScanThreads) {
    if (idx > 0 && biases[idx - 1].id == biases[idx].id) continue;
    row[biases[idx].id] = replaced.bias(idx);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int idx = slot.num_suppressed - 1; idx >= 0; --idx) {
      row[call.lists[slot.suppressed_begin + idx]] = replaced.suppressed(idx);
    }
  }
}

}  // namespace

void RunAdjust(const LaunchContext& context, const SamplingCall& call) {
  Launch(context, AdjustKernel, dim3(call.rows), dim3(kScanThreads), 0, call);
}

void RunRestore(const LaunchContext& context, const SamplingCall& call) {
  Launch(context, RestoreKernel, dim3(call.rows), dim3(kScanThreads), 0, call);
}

}  // namespace lapidary::cuda
