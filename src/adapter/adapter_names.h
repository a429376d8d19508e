// Names of an adapter's tensors: which matrix of the model a delta belongs to.
//
//   base_model.model.model.language_model.layers.3.self_attn.q_proj.lora_A.weight
//   base_model.model.model.layers.3.mlp.down_proj.lora_B.weight              of text-only classes
//   ....layers.3.experts.base_layer.lora_A.weight, ....layers.3.experts.lora_A.weight
//                                                  all experts of a layer (target_parameters)
//   ....layers.3.experts.17.gate_proj.lora_A.weight                          one expert
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lapidary {

// Matrices of the decoder that may have a delta.
enum class AdapterSite : uint8_t {
  kQuery,
  kKey,  // with K = V, of both
  kValue,
  kAttentionOutput,
  kMlpGate,
  kMlpUp,
  kMlpDown,
  kRouter,
  kPerLayerGate,
  kPerLayerProjection,
  kPerLayerModelProjection,  // outside the layers
  kExpertGateUp,             // of every expert one
  kExpertDown,
};
inline constexpr int kNumAdapterSites = 13;

struct AdapterTensorName {
  enum class Experts : uint8_t {
    kNone,
    kStacked,  // all of a layer; shapes say whether gate_up_proj or down_proj
    kOne,
    kEach,  // all of a layer, as matrices of their own in one tensor: GGUF's
  };
  enum class Part : uint8_t { kWhole, kGate, kUp };  // of one expert's gate_up_proj

  bool is_a = false;   // lora_A; else lora_B
  std::string module;  // as PEFT names it, without "base_model.model."; both halves have the same
  AdapterSite site = AdapterSite::kQuery;  // not of kStacked
  int layer = -1;                          // -1: outside the layers
  Experts experts = Experts::kNone;
  int expert = -1;  // of kOne
  Part part = Part::kWhole;
};

// A sentence for what is no low-rank delta of a text decoder's matrix. `file` begins it.
Result<AdapterTensorName> ParseAdapterTensorName(std::string_view tensor, std::string_view file);

// The matrix's name within a layer ("self_attn.q_proj"), or in the decoder.
std::string_view AdapterSiteName(AdapterSite site);

}  // namespace lapidary
