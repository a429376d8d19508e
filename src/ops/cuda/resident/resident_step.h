// All layers and the head of a one-token step, or of a draft for one sequence, as one kernel that
// stays on every SM.
//
// Small steps are bound by the gaps between kernels, not by memory. Here each block owns a fixed
// part of the rows of every matrix. Its producer warp does nothing but load these parts into shared
// memory, in the order of use and as far ahead as there is room: they never wait for a result, so
// memory stays busy while the other warps exchange activations, a few KB between all blocks.
//
// The phases are those that other steps run kernel by kernel (decoder_phase.h). Same input, same
// bits: every output is one block's sum in one order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/cuda/attention/attention_work.h"
#include "ops/cuda/decoder_phase.h"
#include "ops/cuda/launch.h"

namespace lapidary::cuda {

// Of a program: what the launch and the memory of the blocks depend on.
struct ResidentWidths {
  int hidden = 0;
  int vocab_size = 0;
  int ple_width = 0;  // 0: none
  int max_qkv_rows = 0;
  int max_attended = 0;  // num_heads * head_dim
  int max_mlp_width = 0;
  int min_mlp_width = 0;
  int max_kv_heads = 0;
  int num_experts = 0;  // 0: none
  int num_ranks = 0;    // chosen ones of a row
  int expert_width = 0;
  int widest_input = 0;  // of any product
  int query_bytes = 0;   // of the widest split of attention
  bool tiled = false;    // some weights are

  explicit ResidentWidths(const DecoderProgram& program);
};

// Whether the kernel can run a model's program (without fused spans, all rows with an output) on a
// device.
bool ResidentStepSupports(const DeviceInfo& device, const DecoderProgram& program);
// What the blocks exchange; zero before the first step.
int64_t ResidentScratchBytes(const DeviceInfo& device, const DecoderProgram& program);
// The program as the kernel reads it, for the scratch it is given; to be copied to the device.
std::vector<std::byte> MakeResidentProgram(const DeviceInfo& device, const DecoderProgram& program,
                                           void* scratch);

struct ResidentStepCall {
  const void* program = nullptr;  // MakeResidentProgram, in device memory
  float eps = 1e-6f;
  float softcap = 0.0f;
  const float* hidden_in = nullptr;  // [hidden], of the embedding
  float* hidden_out = nullptr;       // [hidden], what the head has normed; null: not wanted
  float* logits = nullptr;           // [vocab_size]
  // The cache, as in AttentionCall and StoreEntriesCall, by group.
  std::byte* pool = nullptr;
  int64_t page_bytes = 0;
  int tokens_per_page[kNumKvGroups] = {};
  const int32_t* page_ids[kNumKvGroups] = {};
  const AttentionSequence* sequences[kNumKvGroups] = {};  // one
  // Where layers own KV.
  const int32_t* write_pages[kNumKvGroups] = {};  // one; 0: the entry is not kept
  const int32_t* write_slots[kNumKvGroups] = {};
};

// Writes the logits and, if the row is kept, its entries' places in the pool.
void RunResidentStep(const LaunchContext& context, const ResidentWidths& widths,
                     const ResidentStepCall& call);

}  // namespace lapidary::cuda
