// What the device itself keeps of a slot between steps; kernels move it on, nobody else.
#pragma once

#include <cstdint>

namespace lapidary::cuda {

struct SlotState {
  int32_t length = 0;       // tokens whose KV the slot's pages hold
  int32_t last_token = 0;   // behind them, not computed yet
  int32_t num_history = 0;  // entries of its penalty history (SamplingSlot)
  int32_t unused = 0;       // 16 bytes
};

}  // namespace lapidary::cuda
