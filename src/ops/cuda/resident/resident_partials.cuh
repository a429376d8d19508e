// What splits of a resident step's attention leave, their sums, maxima and sums of P, as packets,
// and how the blocks share the work of joining it.
#pragma once

#include <cstdint>

#include "ops/cuda/ptx/warp_mma.cuh"
#include "ops/cuda/resident/resident_exchange.cuh"
#include "ops/cuda/resident/resident_program.h"
#include "ops/cuda/resident/resident_splits.cuh"
#include "ops/cuda/row_norm.cuh"

namespace lapidary::cuda {

// Where a split's sums of four neighbouring columns of a head lie: a thread's in the order in which
// it has them, those of all threads side by side. As the split's class computes them, lane 4 g + t
// of warp w has of heads g and g + 8 two runs of kColumns columns, 2 t and 2 t + 1 of the eight
// runs of its warp.
struct PartialPlace {
  int thread;
  int send;  // of the thread's sends

  __device__ PartialPlace(int head_dim, int head, int column) {
    const int wide = head_dim == 512 ? 1 : 0;  // 8 columns, else 4
    const int in_warp = column & ((32 << wide) - 1);
    const int run = in_warp >> (2 + wide);  // of eight: 2 t + side
    thread = (column >> (5 + wide)) * 32 + head % 8 * 4 + run / 2;
    send = ((head / 8 * 2 + run % 2) << wide) + (in_warp >> 2 & wide);
  }
};
__device__ __forceinline__ uint4* PartialSums(const ResidentPartials& partials, int split, int send,
                                              int thread) {
  return partials.sums + (split * (kSplitSumBytes / 16) + send * kResidentWorkers + thread);
}

// Combines the splits of a layer: this block's share of the attended values, sent as packets.
// Sixteen lanes share the splits of four neighbouring values.
__device__ __forceinline__ void CombineSplits(const ResidentAttention& layer, const SplitPlan& plan,
                                              const ResidentPartials& partials, uint32_t number,
                                              uint64_t* attended) {
  constexpr int kLanes = 16;
  constexpr int kAtOnce = 2;  // splits of a lane
  constexpr int kGroups = kResidentWorkers / kLanes;
  const int thread = ThreadOfPhase();
  const int lane = thread % kLanes;
  const int quads_per_head = layer.head_dim / 4;
  const BlockShare quads = ShareOfBlock(layer.num_heads * quads_per_head);
#pragma unroll 1
  for (int first = quads.begin; first < quads.end; first += kGroups) {
    const int quad = first + thread / kLanes;
    const bool is_ours = quad < quads.end;
    const int head = layer.head_dim == 512 ? quad >> 7 : quad >> 6;
    const int kv_head = static_cast<int>(head * plan.inverse >> 16);
    const int head_of_split = head - kv_head * plan.heads;
    const int dim = 4 * (quad & (quads_per_head - 1));
    // Where K is V, splits have the columns in the order of entries.
    const int column =
        layer.keys_are_apart ? dim : ColumnOfDim(layer.head_dim, layer.rotary_pairs, dim);
    const PartialPlace place(layer.head_dim, head_of_split, column);
    const int first_split = kv_head * plan.splits_per_head;
    float maximum = -1e30f;  // A difference of two such is 0, unlike that of infinities.
    float weight_sum = 0.0f;
    float4 sums = {};
#pragma unroll 1
    for (int split = lane; split < plan.splits_per_head && is_ours; split += kLanes * kAtOnce) {
      float4 weights[kAtOnce];  // maximum, sum of P
      float4 parts[kAtOnce];
      AskUntilComplete([&] {
        bool complete = true;
#pragma unroll
        for (int idx = 0; idx < kAtOnce; ++idx) {
          weights[idx] = make_float4(-1e30f, 0.0f, 0.0f, 0.0f);
          parts[idx] = {};
          if (split + idx * kLanes >= plan.splits_per_head) continue;
          const int from = first_split + split + idx * kLanes;
          const bool has_weights = ReceiveFloats(
              partials.weights + (from * kSplitHeads + head_of_split), number, weights[idx]);
          const bool has_sums = ReceiveFloats(PartialSums(partials, from, place.send, place.thread),
                                              number, parts[idx]);
          complete = complete && has_weights && has_sums;
        }
        return complete;
      });
#pragma unroll
      for (int idx = 0; idx < kAtOnce; ++idx) {
        const float highest = fmaxf(maximum, weights[idx].x);
        const float shrink = Exp2(maximum - highest);
        const float other = Exp2(weights[idx].x - highest);
        maximum = highest;
        weight_sum = weight_sum * shrink + weights[idx].y * other;
        sums.x = sums.x * shrink + parts[idx].x * other;
        sums.y = sums.y * shrink + parts[idx].y * other;
        sums.z = sums.z * shrink + parts[idx].z * other;
        sums.w = sums.w * shrink + parts[idx].w * other;
      }
    }
    __syncwarp();
    float highest = maximum;
#pragma unroll
    for (int away = kLanes / 2; away > 0; away /= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, away));
    }
    const float shrink = Exp2(maximum - highest);
    float all[5] = {weight_sum * shrink, sums.x * shrink, sums.y * shrink, sums.z * shrink,
                    sums.w * shrink};
#pragma unroll
    for (int away = kLanes / 2; away > 0; away /= 2) {
#pragma unroll
      for (float& value : all) value += __shfl_xor_sync(0xffffffffu, value, away);
    }
    if (lane == 0 && is_ours) {
      const float inverse = __fdividef(1.0f, all[0]);
      SendPackets(attended + 2 * quad, PackBf16x2(all[1] * inverse, all[2] * inverse),
                  PackBf16x2(all[3] * inverse, all[4] * inverse), number);
    }
  }
}

}  // namespace lapidary::cuda
