#include "bench/memory_floor.h"

#include <algorithm>
#include <cmath>

namespace lapidary::bench {

double DecodeStepBytes(const ModelPlan& plan, const Footprint& weights, int batch_size,
                       int64_t context, int kv_bytes_per_value) {
  double weight_bytes = static_cast<double>(weights.read_per_token);
  if (plan.moe) {
    const double all = plan.moe->num_experts;
    const double chosen = plan.moe->top_k;
    const double touched = all * (1.0 - std::pow(1.0 - chosen / all, batch_size));
    weight_bytes += static_cast<double>(weights.experts) * (touched - chosen) / all;
  }
  int64_t kv_values = 0;
  for (const LayerPlan& layer : plan.layers) {
    const int64_t seen = layer.window == 0 ? context : std::min<int64_t>(context, layer.window);
    kv_values += seen * layer.num_kv_heads * layer.kv_entry.entry_len;
  }
  return weight_bytes + static_cast<double>(kv_bytes_per_value) * batch_size * kv_values;
}

}  // namespace lapidary::bench
