#include "ops/cuda/sampling/sampling.h"

namespace lapidary::cuda {
namespace {

constexpr int kBindThreads = 256;

// A block for each binding.
__global__ void __launch_bounds__(kBindThreads) BindSlotsKernel(SlotBindingsCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const SlotBindingRecord& binding = call.bindings[blockIdx.x];
  for (int idx = threadIdx.x; idx < binding.num_words; idx += kBindThreads) {
    call.lists[binding.lists_begin + idx] = call.words[binding.words_begin + idx];
  }
  if (threadIdx.x != 0) return;
  call.slots[binding.slot] = binding.sampling;
  call.states[binding.slot] = {.num_history = binding.num_history};
}

}  // namespace

void RunBindSlots(const LaunchContext& context, const SlotBindingsCall& call) {
  if (call.num_bindings == 0) return;
  Launch(context, BindSlotsKernel, dim3(call.num_bindings), dim3(kBindThreads), 0, call);
}

}  // namespace lapidary::cuda
