#include "bench/memory_floor.h"

#include <algorithm>
#include <cmath>

namespace lapidary::bench {

double DecodeStepBytes(const ModelPlan& plan, const Footprint& weights, int batch_size,
                       int64_t context, KvFormat kv_format) {
  double weight_bytes = static_cast<double>(weights.read_per_token);
  if (plan.moe) {
    const double all = plan.moe->num_experts;
    const double chosen = plan.moe->top_k;
    const double touched = all * (1.0 - std::pow(1.0 - chosen / all, batch_size));
    weight_bytes += static_cast<double>(weights.experts) * (touched - chosen) / all;
  }
  int64_t kv_bytes = 0;
  for (const LayerPlan& layer : plan.layers) {
    const int64_t seen = layer.window == 0 ? context : std::min<int64_t>(context, layer.window);
    kv_bytes += seen * layer.num_kv_heads * KvEntryBytes(kv_format, layer.kv_entry);
  }
  return weight_bytes + static_cast<double>(batch_size * kv_bytes);
}

}  // namespace lapidary::bench
