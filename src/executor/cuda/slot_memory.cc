#include "executor/cuda/slot_memory.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "executor/cuda/memory_needs.h"

namespace lapidary::cuda {
namespace {

constexpr const char* kPurpose = "the slots";

}  // namespace

SlotMemory::SlotMemory(const ModelPlan& plan, const KvLayout& layout, int num_slots)
    : requests_(num_slots, plan.vocab_size, plan.max_context) {
  const SlotBytes bytes = PlanSlots(plan, layout, num_slots);
  states_ = DeviceBuffer(bytes.states, kPurpose);
  sampling_ = DeviceBuffer(bytes.sampling, kPurpose);
  lists_ = DeviceBuffer(bytes.lists, kPurpose);
  replaced_ = DeviceBuffer(bytes.replaced, kPurpose);
  bindings_ = DeviceBuffer(bytes.bindings, kPurpose);
  LAPIDARY_CUDA_CHECK(cudaMemset(states_.As<void>(), 0, states_.num_bytes()));
  const std::vector<SamplingSlot> unbound(num_slots);
  LAPIDARY_CUDA_CHECK(cudaMemcpy(sampling_.As<void>(), unbound.data(), sampling_.num_bytes(),
                                 cudaMemcpyHostToDevice));
  for (int group = 0; group < kNumKvGroups; ++group) {
    table_stride_[group] = TableStride(plan, layout, group);
    tables_[group] = DeviceBuffer(bytes.tables[group], kPurpose);
    LAPIDARY_CUDA_CHECK(cudaMemset(tables_[group].As<void>(), 0, tables_[group].num_bytes()));
  }
}

int64_t SlotMemory::num_bytes_for_test() const {
  int64_t total = 0;
  for (const DeviceBuffer* buffer :
       {&states_, &sampling_, &lists_, &replaced_, &bindings_, &tables_[0], &tables_[1]}) {
    total += buffer->num_bytes();
  }
  return total;
}

bool SlotMemory::ReserveLists(cudaStream_t stream) {
  const int64_t num_bytes = requests_.num_list_words() * static_cast<int64_t>(sizeof(int32_t));
  if (num_bytes <= lists_.num_bytes()) return false;
  DeviceBuffer larger(2 * num_bytes, kPurpose);
  LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(larger.As<void>(), lists_.As<void>(), lists_.num_bytes(),
                                      cudaMemcpyDeviceToDevice, stream));
  LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(stream));
  lists_ = std::move(larger);
  return true;
}

bool SlotMemory::Bind(const LaunchContext& context, std::span<const SlotBinding> bindings,
                      Staging& staging) {
  if (bindings.empty()) return false;
  staging.records.clear();
  staging.words.clear();
  for (const SlotBinding& binding : bindings) {
    requests_.Bind(binding, staging.records, staging.words);
  }
  const bool has_moved = ReserveLists(context.stream);
  const int64_t record_bytes =
      static_cast<int64_t>(staging.records.size() * sizeof(SlotBindingRecord));
  const int64_t num_bytes =
      record_bytes + static_cast<int64_t>(staging.words.size() * sizeof(int32_t));
  if (staging.pinned.num_bytes() < num_bytes) {
    staging.pinned = PinnedBuffer(std::max(2 * num_bytes, bindings_.num_bytes()), kPurpose);
  }
  if (bindings_.num_bytes() < num_bytes) {
    LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(context.stream));
    bindings_ = DeviceBuffer(2 * num_bytes, kPurpose);
  }
  std::byte* const to = staging.pinned.As<std::byte>();
  std::memcpy(to, staging.records.data(), record_bytes);
  if (!staging.words.empty()) {
    std::memcpy(to + record_bytes, staging.words.data(), num_bytes - record_bytes);
  }
  LAPIDARY_CUDA_CHECK(
      cudaMemcpyAsync(bindings_.As<void>(), to, num_bytes, cudaMemcpyHostToDevice, context.stream));
  SlotBindingsCall call;
  call.num_bindings = static_cast<int>(staging.records.size());
  call.bindings = bindings_.As<SlotBindingRecord>();
  call.words = bindings_.As<int32_t>(record_bytes);
  call.slots = sampling_.As<SamplingSlot>();
  call.states = states_.As<SlotState>();
  call.lists = lists_.As<int32_t>();
  RunBindSlots(context, call);
  return has_moved;
}

void SlotMemory::Fill(PrepareStepCall& call) const {
  call.slots = states_.As<SlotState>();
  for (int group = 0; group < kNumKvGroups; ++group) {
    call.tables[group] = tables_[group].As<int32_t>();
    call.table_stride[group] = table_stride_[group];
  }
}

void SlotMemory::Fill(SamplingCall& call) const {
  call.slots = sampling_.As<SamplingSlot>();
  call.states = states_.As<SlotState>();
  call.lists = lists_.As<int32_t>();
  call.replaced = replaced_.As<int32_t>();
}

}  // namespace lapidary::cuda
