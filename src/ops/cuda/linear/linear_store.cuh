// The last step of a linear layer, from f32 sums to y; shared by the kernels that compute them.
#pragma once

#include "ops/cuda/activation.cuh"
#include "ops/cuda/linear/linear.h"

namespace lapidary::cuda {

struct LinearOutput {
  void* y;
  const bf16* multiplier;
  int64_t multiplier_stride;
  float softcap;
  Epilogue epilogue;
  int width;  // of y
};

inline LinearOutput MakeLinearOutput(const LinearCall& call) {
  return {.y = call.y,
          .multiplier = call.multiplier,
          .multiplier_stride = call.multiplier_stride,
          .softcap = call.softcap,
          .epilogue = call.epilogue,
          .width = call.epilogue == Epilogue::kGatedGelu ? call.out_dim() / 2 : call.out_dim()};
}

__device__ __forceinline__ void StoreFeature(const LinearOutput& output, int row, int feature,
                                             float value) {
  if (feature >= output.width) return;
  const int64_t index = static_cast<int64_t>(row) * output.width + feature;
  if (output.epilogue == Epilogue::kSoftcap) {
    static_cast<float*>(output.y)[index] = Softcap(value, output.softcap);
    return;
  }
  if (output.epilogue == Epilogue::kGeluMul) {
    const bf16* multiplier = output.multiplier + row * output.multiplier_stride + feature;
    const uint16_t bits = __ldcg(reinterpret_cast<const uint16_t*>(multiplier));
    value = GeluTanh(value) * __uint_as_float(static_cast<uint32_t>(bits) << 16);
  }
  static_cast<bf16*>(output.y)[index] = __float2bfloat16_rn(value);
}

// Weight rows come in tiles of 16, which a lane of an mma sees as pairs (i, i + 8), i in 0..7. With
// kGatedGelu a pair is a gate and its up row, and the tile has 8 features; otherwise 16.
__device__ __forceinline__ void StorePair(const LinearOutput& output, int row, int tile, int pair,
                                          float low, float high) {
  if (output.epilogue == Epilogue::kGatedGelu) {
    StoreFeature(output, row, tile * 8 + pair, GeluTanh(low) * high);
  } else {
    StoreFeature(output, row, tile * 16 + pair, low);
    StoreFeature(output, row, tile * 16 + 8 + pair, high);
  }
}

// The weight row behind row `index` (0..15) of a tile. Past the end: the last one there is.
__device__ __forceinline__ int WeightRow(bool gated, int weight_rows, int tile, int index) {
  if (!gated) return min(tile * 16 + index, weight_rows - 1);
  const int half = weight_rows / 2;
  return min(tile * 8 + index % 8, half - 1) + (index >= 8 ? half : 0);
}

// Tiles of a weight.
inline int NumLinearTiles(const LinearCall& call) {
  return call.epilogue == Epilogue::kGatedGelu ? (call.out_dim() / 2 + 7) / 8
                                               : (call.out_dim() + 15) / 16;
}

}  // namespace lapidary::cuda
