#include "bench/memory_floor.h"

#include <algorithm>
#include <cmath>

#include "model/footprint.h"

namespace lapidary::bench {
namespace {

constexpr double kWeightBytes = 2.0;  // bf16

}  // namespace

double DecodeStepBytes(const ModelPlan& plan, int batch_size, int64_t context,
                       int kv_bytes_per_value) {
  const Footprint footprint = MakeFootprint(plan);
  double values = static_cast<double>(footprint.read_per_token);
  if (plan.moe) {
    const double all = plan.moe->num_experts;
    const double chosen = plan.moe->top_k;
    const double touched = all * (1.0 - std::pow(1.0 - chosen / all, batch_size));
    values += static_cast<double>(footprint.experts) * (touched - chosen) / all;
  }
  int64_t kv_values = 0;
  for (const LayerPlan& layer : plan.layers) {
    const int64_t seen = layer.window == 0 ? context : std::min<int64_t>(context, layer.window);
    kv_values += seen * layer.num_kv_heads * layer.kv_entry.entry_len;
  }
  return kWeightBytes * values + static_cast<double>(kv_bytes_per_value) * batch_size * kv_values;
}

}  // namespace lapidary::bench
