// All layers and the head of a one-token step as one kernel that stays on every SM.
//
// Small steps are bound by the gaps between kernels, not by memory. Here each block owns a fixed
// part of the rows of every matrix. Its producer warp does nothing but load these parts into shared
// memory, in the order of use and as far ahead as there is room: they never wait for a result, so
// memory stays busy while the other warps exchange activations, a few KB between all blocks.
//
// A step is a program of phases, each a matrix product with what comes before and behind it. Same
// input, same bits: every output is one block's sum in one order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/kv_entry.h"
#include "ops/cuda/attention/attention_work.h"
#include "ops/cuda/launch.h"
#include "tensor/matrix_ref.h"

namespace lapidary::cuda {

// One layer: device pointers.
struct ResidentLayer {
  MatrixRef qkv;             // [q; k; v] of what the layer has, rows of hidden
  MatrixRef output;          // [hidden, num_heads * head_dim]
  MatrixRef gate_up;         // [2 mlp_width, hidden]
  MatrixRef down;            // [hidden, mlp_width]
  MatrixRef ple_gate;        // [ple_width, hidden]
  MatrixRef ple_projection;  // [hidden, ple_width]
  const float* input_norm = nullptr;
  const float* post_attention_norm = nullptr;
  const float* pre_mlp_norm = nullptr;
  const float* post_mlp_norm = nullptr;
  const float* ple_post_norm = nullptr;
  const float* q_norm = nullptr;        // [head_dim]
  const float* k_norm = nullptr;        // [head_dim], own
  const float* owner_k_norm = nullptr;  // [head_dim], of the layer whose KV is read
  const float2* rope = nullptr;         // [rotary_pairs] of this step's position
  int64_t layer_offset = 0;             // of that layer, bytes from a page's start
  float scale = 1.0f;                   // of the residual stream behind the layer
  int rotary_pairs = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;  // 256 or 512
  int mlp_width = 0;
  int window = 0;  // 0: all
  int group = 0;
  KvEntryPlan entry;
  int kv_layer = 0;  // whose KV is read; its own index: it owns it
  bool k_is_v = false;
};

// What is the same for all layers.
struct ResidentModel {
  int hidden = 0;
  int vocab_size = 0;
  int ple_width = 0;                 // 0: none
  const bf16* ple_inputs = nullptr;  // [layers, ple_width]
  const float* final_norm = nullptr;
  MatrixRef head;  // [vocab_size, hidden]
  std::vector<ResidentLayer> layers;
};

// Whether the kernel can run a model of these dimensions on a device.
bool ResidentStepSupports(const DeviceInfo& device, const ResidentModel& model);
// What the blocks exchange; zero before the first step.
int64_t ResidentScratchBytes(const DeviceInfo& device, const ResidentModel& model);
// The work of a step, phase by phase, for the scratch it is given; to be copied to the device.
std::vector<std::byte> MakeResidentProgram(const DeviceInfo& device, const ResidentModel& model,
                                           void* scratch);

struct ResidentStepCall {
  const void* program = nullptr;  // MakeResidentProgram, in device memory
  float eps = 1e-6f;
  float softcap = 0.0f;
  const float* hidden_in = nullptr;  // [hidden], of the embedding
  float* logits = nullptr;           // [vocab_size]
  // The cache, as in AttentionCall and StoreEntriesCall, by group.
  std::byte* pool = nullptr;
  int64_t page_bytes = 0;
  int tokens_per_page[kNumKvGroups] = {};
  const int32_t* page_ids[kNumKvGroups] = {};
  const AttentionSequence* sequences[kNumKvGroups] = {};  // one
  const int32_t* write_pages[kNumKvGroups] = {};          // one; 0: the entry is not kept
  const int32_t* write_slots[kNumKvGroups] = {};
};

// Writes the logits and, if the row is kept, its entries' places in the pool.
void RunResidentStep(const LaunchContext& context, const ResidentModel& model,
                     const ResidentStepCall& call);

}  // namespace lapidary::cuda
