// How much a plan's weights are, counted in parameters or in bytes: what `inspect` prints and what
// the floors of docs/performance.md are computed from.
#pragma once

#include <cstdint>

#include "model/plan.h"
#include "model/weight_plan.h"

namespace lapidary {

struct Footprint {
  // By component; `layers` holds everything inside the layers but the experts.
  int64_t embedding = 0;
  int64_t head = 0;  // where the embedding is not the head
  int64_t per_layer_embedding = 0;
  int64_t per_layer_projection = 0;
  int64_t layers = 0;
  int64_t experts = 0;
  int64_t final_norm = 0;
  int64_t unused_shared_kv = 0;  // may be in the file, is never read; parameters; not in total()

  int64_t total() const {
    return embedding + head + per_layer_embedding + per_layer_projection + layers + experts +
           final_norm;
  }

  // Weights streamed for one decoded token at batch 1 (all but the gathered tables; top-k experts
  // only).
  int64_t read_per_token = 0;
  // Rows gathered for one token: its embedding and per-layer embeddings.
  int64_t gathered_per_token = 0;
};

// In parameters.
Footprint MakeFootprint(const ModelPlan& plan);
// In bytes: matrices as they are in memory, vectors as they are stored.
Footprint MakeFootprint(const ModelPlan& plan, const WeightPlan& weights);

}  // namespace lapidary
