#include "bench_kernels/product_shapes.h"

#include <fmt/format.h>

#include <algorithm>

namespace lapidary {

std::vector<ProductShape> ProductShapes(const std::string& model, const ModelPlan& plan,
                                        const WeightFormat& weights) {
  using cuda::Epilogue;
  std::vector<ProductShape> shapes;
  const auto add = [&](const std::string& name, int in_dim, int out_dim, Epilogue epilogue,
                       bool residual) {
    const bool known = std::any_of(shapes.begin(), shapes.end(), [&](const ProductShape& shape) {
      return shape.in_dim == in_dim && shape.out_dim == out_dim && shape.epilogue == epilogue;
    });
    if (known) return;
    // A second width of the same product.
    const std::string full = fmt::format("{} {}", model, name);
    const bool taken = std::any_of(shapes.begin(), shapes.end(),
                                   [&](const ProductShape& shape) { return shape.name == full; });
    shapes.push_back({taken ? full + "_wide" : full, in_dim, out_dim, epilogue, residual, weights});
  };
  const int hidden = plan.hidden_size;
  if (plan.ple) {
    add("ple_inputs", hidden, plan.num_layers * plan.ple->width, Epilogue::kStore, false);
  }
  for (const LayerPlan& layer : plan.layers) {
    const char* kind = layer.kind == AttentionKind::kSliding ? "sliding" : "full";
    const int kv_parts = layer.owns_kv() ? (layer.k_is_v ? 1 : 2) : 0;
    const int heads = layer.num_heads + kv_parts * layer.num_kv_heads;
    add(fmt::format("{}_{}", layer.owns_kv() ? "qkv" : "q", kind), hidden, heads * layer.head_dim,
        Epilogue::kStore, true);
    add(fmt::format("o_{}", kind), layer.num_heads * layer.head_dim, hidden, Epilogue::kStore,
        false);
    add("gate_up", hidden, 2 * layer.mlp_width, Epilogue::kGatedGelu, true);
    add("down", layer.mlp_width, hidden, Epilogue::kStore, false);
    if (plan.ple) {
      add("ple_gate", hidden, plan.ple->width, Epilogue::kGeluMul, true);
      add("ple_projection", plan.ple->width, hidden, Epilogue::kStore, false);
    }
  }
  add("head", hidden, plan.vocab_size, Epilogue::kSoftcap, true);
  return shapes;
}

}  // namespace lapidary
