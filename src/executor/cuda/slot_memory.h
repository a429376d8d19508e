// What the device keeps for the slots: where they stand, how their tokens are drawn, their page
// tables. Allocated once; steps change it in the order of the stream.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device_memory.h"
#include "executor/cuda/slot_requests.h"
#include "kv/kv_layout.h"
#include "ops/cuda/prepare_step.h"
#include "ops/cuda/sampling/sampling.h"

namespace lapidary::cuda {

class SlotMemory {
 public:
  // `num_slots` includes the slot of padding rows.
  SlotMemory(const ModelPlan& plan, const KvLayout& layout, int num_slots);

  // Page-locked memory of one step's bindings; the step must be done before it is used again.
  struct Staging {
    std::vector<SlotBindingRecord> records;
    std::vector<int32_t> words;
    PinnedBuffer pinned;
  };
  // True when buffers moved to make room for long lists: graphs are void then.
  bool Bind(const LaunchContext& context, std::span<const SlotBinding> bindings, Staging& staging);

  SlotRequests& requests() { return requests_; }
  const SlotRequests& requests() const { return requests_; }
  int table_stride(int group) const { return table_stride_[group]; }
  const int32_t* table(int group) const { return tables_[group].As<int32_t>(); }
  int64_t replaced_capacity() const { return replaced_.num_bytes() / sizeof(int32_t); }

  // Of all its buffers.
  int64_t num_bytes_for_test() const;

  // The slots' part of these calls.
  void Fill(PrepareStepCall& call) const;
  void Fill(SamplingCall& call) const;

 private:
  bool ReserveLists(cudaStream_t stream);

  SlotRequests requests_;
  std::array<int, kNumKvGroups> table_stride_{};
  DeviceBuffer states_;                            // SlotState [slots]
  DeviceBuffer sampling_;                          // SamplingSlot [slots]
  DeviceBuffer lists_;                             // int32, SlotRequests says where
  DeviceBuffer replaced_;                          // int32, of one step
  DeviceBuffer bindings_;                          // of one step
  std::array<DeviceBuffer, kNumKvGroups> tables_;  // int32 [slots, table_stride]
};

}  // namespace lapidary::cuda
