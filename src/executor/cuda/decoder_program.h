// The program of a model's steps (ops/cuda/decoder_phase.h), written down from the order of
// operations in model/forward.h.
#pragma once

#include <vector>

#include "executor/cuda/device_weights.h"
#include "kv/kv_layout.h"
#include "model/plan.h"
#include "ops/cuda/decoder_phase.h"

namespace lapidary::cuda {

// What a step has made before its first phase.
struct DecoderInputs {
  std::vector<const float2*> rope;   // by layer, [rows, RopeRowPairs]
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
                                  const KvLayout& layout, const DecoderInputs& inputs,
                                  const DecoderProgramOptions& options);

}  // namespace lapidary::cuda
