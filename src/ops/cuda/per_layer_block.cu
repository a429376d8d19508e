#include "base/check.h"
#include "device/device_scope.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/active_clusters.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/per_layer_block.h"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/ptx/tma.cuh"
#include "ops/cuda/ptx/warp_mma.cuh"
#include "ops/cuda/row_norm.cuh"

namespace lapidary::cuda {
namespace {

// A cluster of 16 blocks has 16 rows; a block has one of them for what concerns whole rows, and a
// sixteenth of every matrix for all 16: of W_g a slice of k, of W_p a slice of outputs. Values go
// from block to block as they are made, counted by a barrier of the block that needs them.
constexpr int kRanks = 16;
constexpr int kRows = 16;
constexpr int kWidth = 256;
constexpr int kFeatures = kWidth / kRanks;  // of the gate, finished by a block
constexpr int kThreads = kNormThreads;
constexpr int kWarps = kThreads / 32;
constexpr int kStep = 16;  // values of k of a matrix instruction
constexpr int kMaxQuads = 3;

enum Exchange { kInputs, kPartials, kGated, kOutputs, kNumExchanges };

// Shared memory, in bytes. Rows that ldmatrix reads are 16 bytes more than a multiple of 32 apart.
struct SharedLayout {
  int slice;  // of the hidden size
  int slice_pitch;
  int gate;        // bf16 [kWidth, slice]
  int projection;  // bf16 [slice, kWidth]
  int inputs;      // bf16 [kRows, slice]
  int partials;    // f32 [kRanks, kFeatures, kRows]
  int own_gated;   // bf16 [kRows, kFeatures]
  int gated;       // bf16 [kRanks, kRows, kFeatures]
  int own_out;     // bf16 [kRows, slice]
  int out;         // bf16 [hidden_size], of this block's row
  int barriers;    // [kNumExchanges]
  int total;

  static constexpr int kProjectionPitch = 2 * kWidth + 16;

  __host__ __device__ explicit SharedLayout(int hidden_size) : slice(hidden_size / kRanks) {
    slice_pitch = 2 * slice + 16;
    gate = 0;
    projection = gate + kWidth * slice_pitch;
    inputs = projection + slice * kProjectionPitch;
    partials = inputs + kRows * slice_pitch;
    own_gated = partials + kRanks * kFeatures * kRows * 4;
    gated = own_gated + kRows * kFeatures * 2;
    own_out = gated + kRanks * kRows * kFeatures * 2;
    out = own_out + kRows * slice_pitch;
    barriers = out + hidden_size * 2;
    total = barriers + kNumExchanges * 8;
  }
};

extern __shared__ __align__(128) std::byte shared_memory[];

__device__ __forceinline__ uint32_t RankInCluster() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Copies `num_rows` rows of `row_bytes` from rows `stride` bytes apart.
__device__ __forceinline__ void CopyRows(uint32_t to, int pitch, const std::byte* from,
                                         int64_t stride, int num_rows, int row_bytes) {
  const int pieces = row_bytes / 16;
  for (int idx = threadIdx.x; idx < num_rows * pieces; idx += kThreads) {
    const int row = idx / pieces;
    const int place = idx % pieces * 16;
    CopyAsync(to + row * pitch + place, from + row * stride + place);
  }
  CommitCopies();
}

// Where a lane finds its row of four 8 x 8 matrices: of A rows 0..7 and 8..15 of the first 8 values
// of k, then of the others; of B, kRows rows by kStep values, both halves of k of rows 0..7 first.
__device__ __forceinline__ int LaneOfA(int lane, int pitch) {
  return (lane % 8 + lane / 8 % 2 * 8) * pitch + lane / 16 * 16;
}
__device__ __forceinline__ int LaneOfB(int lane, int pitch) {
  return (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 16;
}

// A block's place in its cluster, and the way to the other blocks.
struct ClusterBlock {
  SharedLayout layout;
  uint32_t memory;  // where the layout begins
  int rank;
  int first_row;  // of the cluster

  __device__ __forceinline__ uint32_t BarrierOf(Exchange exchange) const {
    return memory + layout.barriers + exchange * 8;
  }
  // Sends to the block of that rank, where the exchange's barrier counts it.
  template <typename T>
  __device__ __forceinline__ void Send(Exchange exchange, int to_rank, int place, T value) const {
    SendToBlock(AddressInBlock(memory + place, to_rank),
                AddressInBlock(BarrierOf(exchange), to_rank), value);
  }
};

// One thread: what this block receives in each exchange.
__device__ __forceinline__ void SetUpBarriers(const ClusterBlock& block, int dim) {
  const int num_bytes[kNumExchanges] = {kRows * block.layout.slice * 2,
                                        kRanks * kFeatures * kRows * 4,
                                        kRanks * kRows * kFeatures * 2, dim * 2};
  for (int exchange = 0; exchange < kNumExchanges; ++exchange) {
    const uint32_t barrier = block.BarrierOf(static_cast<Exchange>(exchange));
    InitBarrier(barrier, 1);
    ExpectBytes(barrier, num_bytes[exchange]);
  }
  PublishByteBarriers();
}

// Starts the copies of this block's slices of W_g, then of W_p, a group each.
__device__ __forceinline__ void CopyWeights(const PerLayerBlockCall& call,
                                            const ClusterBlock& block) {
  const SharedLayout& layout = block.layout;
  const int slice = layout.slice;
  CopyRows(block.memory + layout.gate, layout.slice_pitch,
           static_cast<const std::byte*>(call.gate.data) + block.rank * slice * 2,
           int64_t{2} * call.hidden_size, kWidth, slice * 2);
  CopyRows(block.memory + layout.projection, SharedLayout::kProjectionPitch,
           static_cast<const std::byte*>(call.projection.data) +
               int64_t{block.rank} * slice * kWidth * 2,
           kWidth * 2, slice, kWidth * 2);
}

// A row of the cluster, in the registers of its block.
template <int kQuads>
struct Row {
  float4 h[kQuads];
  float4 out[kQuads];  // of the block to be added
};

template <int kQuads>
__device__ __forceinline__ void LoadNorm(const float* norm, int num_quads,
                                         float4 (&values)[kQuads]) {
  ForEachQuad<kQuads>(threadIdx.x, num_quads, [&](int idx, int quad) {
    values[idx] = __ldg(reinterpret_cast<const float4*>(norm) + quad);
  });
}

// The thread's value among those of the gate that this block finishes: [kFeatures, kRows].
struct GateValue {
  int feature;
  int row;
  float multiplier;
};

__device__ __forceinline__ GateValue LoadMultiplier(const PerLayerBlockCall& call,
                                                    const ClusterBlock& block) {
  GateValue value = {.feature = static_cast<int>(threadIdx.x) / kRows,
                     .row = static_cast<int>(threadIdx.x) % kRows,
                     .multiplier = 0.0f};
  if (block.first_row + value.row < call.rows) {
    const auto* from = reinterpret_cast<const uint16_t*>(
        call.multiplier + (block.first_row + value.row) * call.multiplier_stride +
        block.rank * kFeatures);
    value.multiplier = __uint_as_float(static_cast<uint32_t>(__ldcg(from + value.feature)) << 16);
  }
  return value;
}

// h1 of our row, a slice of it to each block.
template <int kQuads>
__device__ __forceinline__ void SendInputs(const ClusterBlock& block, int num_quads,
                                           const float4 (&h)[kQuads]) {
  const SharedLayout& layout = block.layout;
  ForEachQuad<kQuads>(threadIdx.x, num_quads, [&](int idx, int quad) {
    const int to_rank = 4 * quad / layout.slice;
    block.Send(
        kInputs, to_rank,
        layout.inputs + block.rank * layout.slice_pitch + (4 * quad - to_rank * layout.slice) * 2,
        PackBf16x4(h[idx]));
  });
}

// Our slice of k of the gate's products: a warp has 32 of the 256 features, each 16 of which are
// finished by one block.
__device__ __forceinline__ void MultiplyGate(const ClusterBlock& block, int warp, int lane) {
  const SharedLayout& layout = block.layout;
  const int group = lane / 4;
  const int pair = lane % 4;
  float sums[2][2][4] = {};
  const uint32_t b_place = block.memory + layout.inputs + LaneOfB(lane, layout.slice_pitch);
  const uint32_t a_place = block.memory + layout.gate + warp * 2 * kFeatures * layout.slice_pitch +
                           LaneOfA(lane, layout.slice_pitch);
#pragma unroll 2
  for (int k = 0; k < layout.slice; k += kStep) {
    uint32_t a[4], b[4];
    LoadMatrices(b, b_place + 2 * k);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      LoadMatrices(a, a_place + half * kFeatures * layout.slice_pitch + 2 * k);
      Mma(sums[half][0], a, b[0], b[1]);
      Mma(sums[half][1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int side = 0; side < 4; ++side) {  // rows 0..7 and 8..15 of features group, group + 8
      const int of_rows = side % 2;
      const int of_features = side / 2;
      const int place =
          ((block.rank * kFeatures + group + of_features * 8) * kRows + of_rows * 8 + 2 * pair) * 4;
      const float* two = sums[half][of_rows] + of_features * 2;
      block.Send(kPartials, warp * 2 + half, layout.partials + place, make_float2(two[0], two[1]));
    }
  }
}

// Our features of all rows, to all blocks.
__device__ __forceinline__ void FinishGate(const ClusterBlock& block, const GateValue& value) {
  const SharedLayout& layout = block.layout;
  const auto* partials = reinterpret_cast<const float*>(shared_memory + layout.partials);
  float sum = 0.0f;
#pragma unroll
  for (int from = 0; from < kRanks; ++from) {
    sum += partials[from * kFeatures * kRows + threadIdx.x];
  }
  auto* own = reinterpret_cast<bf16*>(shared_memory + layout.own_gated);
  own[value.row * kFeatures + value.feature] = __float2bfloat16(GeluTanh(sum) * value.multiplier);
  __syncthreads();
  constexpr int kPieces = kRows * kFeatures * 2 / 16;
  const uint4 piece = LoadShared(block.memory + layout.own_gated + threadIdx.x % kPieces * 16);
  for (int to_rank = threadIdx.x / kPieces; to_rank < kRanks; to_rank += kThreads / kPieces) {
    const int place = block.rank * kPieces * 16 + static_cast<int>(threadIdx.x) % kPieces * 16;
    block.Send(kGated, to_rank, layout.gated + place, piece);
  }
}

// Our outputs of all rows, into own_out.
__device__ __forceinline__ void MultiplyProjection(const ClusterBlock& block, int warp, int lane) {
  const SharedLayout& layout = block.layout;
  const int group = lane / 4;
  const int pair = lane % 4;
  for (int tile = warp; tile < layout.slice / 16; tile += kWarps) {
    float sums[2][4] = {};
    const uint32_t b_place = block.memory + layout.gated + LaneOfB(lane, kFeatures * 2);
    const uint32_t a_place = block.memory + layout.projection +
                             tile * 16 * SharedLayout::kProjectionPitch +
                             LaneOfA(lane, SharedLayout::kProjectionPitch);
#pragma unroll 4
    for (int from = 0; from < kRanks; ++from) {
      uint32_t a[4], b[4];
      LoadMatrices(b, b_place + from * kRows * kFeatures * 2);
      LoadMatrices(a, a_place + from * kFeatures * 2);
      Mma(sums[0], a, b[0], b[1]);
      Mma(sums[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int idx = 0; idx < 8; ++idx) {
      const int of_row = idx / 4 * 8 + 2 * pair + idx % 2;
      const int output = tile * 16 + group + idx % 4 / 2 * 8;
      auto* own =
          reinterpret_cast<bf16*>(shared_memory + layout.own_out + of_row * layout.slice_pitch);
      own[output] = __float2bfloat16(sums[idx / 4][idx % 4]);
    }
  }
}

// own_out, each row to its block.
__device__ __forceinline__ void SendOutputs(const ClusterBlock& block) {
  const SharedLayout& layout = block.layout;
  const int pieces = layout.slice * 2 / 16;
  for (int idx = threadIdx.x; idx < kRows * pieces; idx += kThreads) {
    const int to_rank = idx / pieces;
    const int place = idx % pieces * 16;
    block.Send(kOutputs, to_rank, layout.out + block.rank * layout.slice * 2 + place,
               LoadShared(block.memory + layout.own_out + to_rank * layout.slice_pitch + place));
  }
}

// The lines of per_layer_block.h in their order: h1, the gate's values, the outputs, h2 and x. An
// exchange is waited for where this block needs what the others have sent in it.
template <int kQuads>
__global__ void __launch_bounds__(kThreads, 1)
    PerLayerBlockKernel(const __grid_constant__ PerLayerBlockCall call) {
  __shared__ float scratch[3][kNormWarps];
  const int dim = call.hidden_size;
  const int num_quads = dim / 4;
  const int rank = static_cast<int>(RankInCluster());
  const ClusterBlock block = {.layout = SharedLayout(dim),
                              .memory = SharedAddress(shared_memory),
                              .rank = rank,
                              .first_row = static_cast<int>(blockIdx.x) - rank};
  const int row_idx = block.first_row + rank;
  const bool has_row = row_idx < call.rows;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;

  AllowNextKernel();
  if (threadIdx.x == 0) SetUpBarriers(block, dim);
  __syncthreads();
  ArriveAtCluster();
  CopyWeights(call, block);
  Row<kQuads> row = {};
  float4 mlp_norm[kQuads] = {}, ple_norm[kQuads] = {}, next_norm[kQuads] = {};
  LoadNorm<kQuads>(call.before.post_norm, num_quads, mlp_norm);
  LoadNorm<kQuads>(call.after.post_norm, num_quads, ple_norm);
  LoadNorm<kQuads>(call.after.pre_norm, num_quads, next_norm);
  WaitForPreviousKernel();

  if (has_row) {
    const auto* hidden =
        reinterpret_cast<const float4*>(call.before.hidden + int64_t{row_idx} * dim);
    const auto* out =
        reinterpret_cast<const uint2*>(call.before.block_out + int64_t{row_idx} * dim);
    ForEachQuad<kQuads>(threadIdx.x, num_quads, [&](int idx, int quad) {
      row.out[idx] = UnpackBf16x4(__ldcg(out + quad));
      row.h[idx] = __ldcg(hidden + quad);
    });
  }
  const GateValue gate_value = LoadMultiplier(call, block);
  AddNormedRow(row.h, row.out, mlp_norm, call.before.scale, dim, call.before.eps, scratch[0]);
  WaitForCluster();  // All have set up their barriers.
  SendInputs<kQuads>(block, num_quads, row.h);

  WaitForCopies<1>();
  __syncthreads();
  WaitForBytes(block.BarrierOf(kInputs), 0);
  MultiplyGate(block, warp, lane);
  WaitForBytes(block.BarrierOf(kPartials), 0);
  FinishGate(block, gate_value);

  WaitForCopies<0>();
  __syncthreads();
  WaitForBytes(block.BarrierOf(kGated), 0);
  MultiplyProjection(block, warp, lane);
  __syncthreads();
  SendOutputs(block);

  // h2 and x of our row. Whoever is done has received all that is sent to it: nobody is waited for
  // at the end.
  WaitForBytes(block.BarrierOf(kOutputs), 0);
  ForEachQuad<kQuads>(threadIdx.x, num_quads, [&](int idx, int quad) {
    row.out[idx] =
        UnpackBf16x4(reinterpret_cast<const uint2*>(shared_memory + block.layout.out)[quad]);
  });
  AddNormedRow(row.h, row.out, ple_norm, call.after.scale, dim, call.after.eps, scratch[1]);
  if (has_row) {
    ForEachQuad<kQuads>(threadIdx.x, num_quads, [&](int idx, int quad) {
      reinterpret_cast<float4*>(call.after.hidden_out + int64_t{row_idx} * dim)[quad] = row.h[idx];
    });
  }
  NormRow(row.h, next_norm, dim, call.after.eps, scratch[2]);
  if (has_row) {
    ForEachQuad<kQuads>(threadIdx.x, num_quads, [&](int idx, int quad) {
      reinterpret_cast<uint2*>(call.x + int64_t{row_idx} * dim)[quad] = PackBf16x4(row.h[idx]);
    });
  }
}

using Kernel = void (*)(PerLayerBlockCall);

Kernel KernelFor(int hidden_size) {
  const int quads = (hidden_size + 4 * kThreads - 1) / (4 * kThreads);
  return quads <= 1   ? PerLayerBlockKernel<1>
         : quads <= 2 ? PerLayerBlockKernel<2>
                      : PerLayerBlockKernel<kMaxQuads>;
}

}  // namespace

bool PerLayerBlockSupports(const DeviceInfo& device, int hidden_size, int ple_width) {
  if (ple_width != kWidth || hidden_size % (kRanks * kStep) != 0) return false;
  if (hidden_size > kMaxQuads * 4 * kThreads) return false;
  const SharedLayout layout(hidden_size);
  const DeviceScope scope(device.ordinal);
  const Kernel kernel = KernelFor(hidden_size);
  cudaFuncAttributes attributes;
  LAPIDARY_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  if (layout.total + static_cast<int>(attributes.sharedSizeBytes) > device.shared_bytes_per_block) {
    return false;
  }
  return MaxActiveClusters(device, reinterpret_cast<const void*>(kernel), kRanks, kThreads,
                           layout.total) > 0;
}

void RunPerLayerBlock(const LaunchContext& context, const PerLayerBlockCall& call) {
  CHECK(call.rows > 0 && call.hidden_size % (kRanks * kStep) == 0) << call.hidden_size;
  CHECK(call.before.block_out != nullptr && call.after.pre_norm != nullptr);
  CHECK_NE(call.before.hidden, call.after.hidden_out);
  CheckBf16(call.gate, kWidth, call.hidden_size);
  CheckBf16(call.projection, call.hidden_size, kWidth);
  const SharedLayout layout(call.hidden_size);
  const Kernel kernel = KernelFor(call.hidden_size);
  const int num_clusters = (call.rows + kRows - 1) / kRows;
  LaunchClusters(context, kernel, kRanks, dim3(num_clusters * kRanks), dim3(kThreads), layout.total,
                 call);
}

}  // namespace lapidary::cuda
