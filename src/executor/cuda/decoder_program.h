// The program of a model's steps (ops/cuda/decoder_phase.h), written down from the order of
// operations in model/forward.h.
#pragma once

#include <vector>

#include "executor/cuda/device_weights.h"
#include "kv/kv_layout.h"
#include "model/plan.h"
#include "ops/cuda/decoder_phase.h"

namespace lapidary::cuda {

// What the attention of a layer reads that is not its own.
struct LayerInputs {
  const float2* rope = nullptr;         // [rows, RopeRowPairs] of a step
  const float* owner_k_norm = nullptr;  // [head_dim], of the layer that owns the KV
  int64_t kv_offset = 0;                // of that layer, bytes from a page's start
};

// Of a model, whose layers read the KV of its own ones; without rotary tables.
std::vector<LayerInputs> InputsFromOwnKv(const ModelPlan& plan, const DeviceWeights& weights,
                                         const KvLayout& layout);

// What a step has made before its first phase.
struct DecoderInputs {
  std::vector<LayerInputs> layers;
  const bf16* ple_inputs = nullptr;  // [rows, layers, width]
};

struct DecoderProgramOptions {
  bool skip_unneeded_rows = true;  // as RunDecoder
  // Fewer rows have an output than go in. A span never reaches across the change.
  bool drops_rows = false;
  // Whether per-layer blocks are one kernel, where all rows are there and behind it.
  bool fuses_per_layer = false;
  bool fuses_per_layer_of_outputs = false;
};

DecoderProgram MakeDecoderProgram(const ModelPlan& plan, const DeviceWeights& weights,
                                  const DecoderInputs& inputs,
                                  const DecoderProgramOptions& options);

// Of an assistant, whose layers read the KV of another decoder.
DecoderProgram MakeAssistantProgram(const ModelPlan& plan, const DeviceWeights& weights,
                                    const DecoderInputs& inputs);

}  // namespace lapidary::cuda
