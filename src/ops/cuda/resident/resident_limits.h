// Sizes that follow from a model, for the host side of a resident step.
#pragma once

#include "ops/cuda/resident/resident_step.h"

namespace lapidary::cuda {

struct ResidentWidths {
  int max_qkv_rows = 0;
  int max_attended = 0;  // num_heads * head_dim
  int max_mlp_width = 0;
  int min_mlp_width = 0;
  int max_kv_heads = 0;
  int widest_input = 0;  // of any product
  int query_bytes = 0;   // of the widest split of attention

  explicit ResidentWidths(const ResidentModel& model);
};

// Blocks of the launch: an SM each, and a part of the outputs of attention and MLP and of the
// activations for each block (resident_exchange.cuh builds on that).
int ResidentBlocks(const DeviceInfo& device, const ResidentModel& model);
// Whether the keys of all layers of a group can be dealt out alike: same heads and window.
bool GroupsAreUniform(const ResidentModel& model);
// Whether all weights are in the format that the kernel multiplies with.
bool WeightsAreBf16(const ResidentModel& model);

}  // namespace lapidary::cuda
