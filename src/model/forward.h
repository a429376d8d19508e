// One step of the decoder, written once for every backend.
//
// ForwardOps are the coarse, already fused steps of a Gemma 4 layer; a backend implements them over
// its own buffers, and the functions below say in which order they run. A backend may replace a
// span of them by one kernel where that measures faster.
//
// Several ranks may share a model (shard.h): each then has a part of every product marked "partial"
// below, and AllReduce adds the parts before anybody reads the sum.
#pragma once

#include "model/plan.h"

namespace lapidary {

// What ranks add up. Experts and the dense MLP beside them are one message of two parts: each has a
// norm of its own, so neither sum may wait for the other.
enum class PartialSum { kEmbedding, kBlock, kBlockAndExperts };

class ForwardOps {
 public:
  virtual ~ForwardOps() = default;

  // Every rank's part becomes the sum of all, added in the order of the ranks, so that all hold the
  // same bits. Never called where there is one rank.
  virtual void AllReduce(PartialSum what) = 0;

  // h = E[token] * sqrt(hidden); partial: 0 of tokens that are another rank's
  virtual void Embed() = 0;
  // ple_l = (rmsnorm((Wp h) / sqrt(hidden))_l + 16-scaled table row_l) / sqrt(2), for every layer
  virtual void MakePerLayerInputs() = 0;
  // From here on only rows whose output somebody needs are computed.
  virtual void KeepOutputRows() = 0;

  // u = rmsnorm(h); q = rope(norm(Wq u)), and for owners of KV the new cache entries
  virtual void ProjectAttention(const LayerPlan& layer) = 0;
  // a = attention of q over cached and new entries
  virtual void Attend(const LayerPlan& layer) = 0;
  // o = Wo a; partial
  virtual void AttentionOutput(const LayerPlan& layer) = 0;
  // h += rmsnorm(o)
  virtual void AddAttention(const LayerPlan& layer) = 0;
  // m = W_down(gelu(W_gate n) * (W_up n)), n = rmsnorm(h); partial
  virtual void DenseMlp(const LayerPlan& layer) = 0;
  // e = the chosen experts' sum, routed by the raw h; partial
  virtual void Experts(const LayerPlan& layer) = 0;
  // m = rmsnorm(m) + rmsnorm(e)
  virtual void JoinExperts(const LayerPlan& layer) = 0;
  // h = (h + rmsnorm(m)) * s, where s is the layer scalar unless PLE follows
  virtual void MlpOutput(const LayerPlan& layer) = 0;
  // h = (h + rmsnorm(W_pp(gelu(W_pg h) * ple_l))) * layer scalar
  virtual void PerLayerGate(const LayerPlan& layer) = 0;
  // The new entries of this layer go to their pages; nobody reads the old ones any more.
  virtual void StoreKv(const LayerPlan& layer) = 0;

  // logits = softcap(E rmsnorm(h)) of the output rows; of a rank, for its part of the vocabulary
  virtual void Head() = 0;
};

// `plan`: the model's, or any rank's. With one rank nothing is reduced.
void RunDecoder(const ModelPlan& plan, bool skip_unneeded_rows, int num_ranks, ForwardOps& ops);

}  // namespace lapidary
