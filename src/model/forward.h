// One step of the decoder, written once for every backend.
//
// ForwardOps are the coarse, already fused steps of a Gemma 4 layer; a backend implements them over
// its own buffers, and the functions below say in which order they run. A backend may replace a
// span of them by one kernel where that measures faster.
#pragma once

#include "model/plan.h"

namespace lapidary {

class ForwardOps {
 public:
  virtual ~ForwardOps() = default;

  // h = E[token] * sqrt(hidden)
  virtual void Embed() = 0;
  // ple_l = (rmsnorm((Wp h) / sqrt(hidden))_l + 16-scaled table row_l) / sqrt(2), for every layer
  virtual void MakePerLayerInputs() = 0;
  // From here on only rows whose output somebody needs are computed.
  virtual void KeepOutputRows() = 0;

  // u = rmsnorm(h); q = rope(norm(Wq u)), and for owners of KV the new cache entries
  virtual void ProjectAttention(const LayerPlan& layer) = 0;
  // a = attention of q over cached and new entries
  virtual void Attend(const LayerPlan& layer) = 0;
  // h += rmsnorm(Wo a)
  virtual void AttentionOutput(const LayerPlan& layer) = 0;
  // m = W_down(gelu(W_gate n) * (W_up n)), n = rmsnorm(h)
  virtual void DenseMlp(const LayerPlan& layer) = 0;
  // e = the chosen experts' sum; m = rmsnorm(m) + rmsnorm(e). Routed by the raw h.
  virtual void Experts(const LayerPlan& layer) = 0;
  // h = (h + rmsnorm(m)) * s, where s is the layer scalar unless PLE follows
  virtual void MlpOutput(const LayerPlan& layer) = 0;
  // h = (h + rmsnorm(W_pp(gelu(W_pg h) * ple_l))) * layer scalar
  virtual void PerLayerGate(const LayerPlan& layer) = 0;
  // The new entries of this layer go to their pages; nobody reads the old ones any more.
  virtual void StoreKv(const LayerPlan& layer) = 0;

  // logits = softcap(E rmsnorm(h)) of the output rows
  virtual void Head() = 0;
};

void RunDecoder(const ModelPlan& plan, bool skip_unneeded_rows, ForwardOps& ops);

}  // namespace lapidary
