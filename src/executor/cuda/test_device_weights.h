// Weights for tests of what only passes them on: shapes, and addresses of which no two are alike,
// with no memory behind them.
#pragma once

#include <cstdint>

#include "executor/cuda/device_weights.h"
#include "model/plan.h"
#include "ops/cuda/bf16_matrix.h"

namespace lapidary::cuda {

inline DeviceWeights MakeAddressesOfWeights(const ModelPlan& plan) {
  uintptr_t next = 0;
  const auto vector = [&] { return reinterpret_cast<const float*>(next += 1024); };
  const auto matrix = [&](int rows, int cols) {
    return Bf16Matrix(reinterpret_cast<const bf16*>(next += 1024), rows, cols);
  };
  const int hidden = plan.hidden_size;
  DeviceWeights weights;
  weights.embedding = matrix(plan.vocab_size, hidden);
  weights.head = weights.embedding;
  weights.final_norm = vector();
  for (const LayerPlan& layer : plan.layers) {
    auto& own = weights.layers.emplace_back();
    own.input_norm = vector();
    own.post_attention_norm = vector();
    own.pre_mlp_norm = vector();
    own.post_mlp_norm = vector();
    own.attention.qkv_proj = matrix(layer.num_qkv_heads() * layer.head_dim, hidden);
    own.attention.o_proj = matrix(hidden, layer.num_heads * layer.head_dim);
    own.attention.q_norm = vector();
    if (layer.owns_kv()) own.attention.k_norm = vector();
    own.mlp.gate_up_proj = matrix(2 * layer.mlp_width, hidden);
    own.mlp.down_proj = matrix(hidden, layer.mlp_width);
    if (layer.has_moe) {
      const int experts = plan.moe->num_experts;
      own.moe.router_proj = matrix(experts, hidden);
      own.moe.gate_up_proj = matrix(experts * 2 * plan.moe->expert_width, hidden);
      own.moe.down_proj = matrix(experts * hidden, plan.moe->expert_width);
    }
    if (plan.ple) {
      own.ple.gate = matrix(plan.ple->width, hidden);
      own.ple.projection = matrix(hidden, plan.ple->width);
      own.ple.post_norm = vector();
    }
    own.layer_scalar = 1.0f + static_cast<float>(layer.index);
  }
  return weights;
}

}  // namespace lapidary::cuda
