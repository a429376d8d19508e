#include "base/check.h"
#include "ops/cuda/linear_store.cuh"
#include "ops/cuda/linear_tiled.h"
#include "ops/cuda/mma.cuh"

namespace lapidary::cuda {
namespace {

// A block computes 128 weight rows by 128 rows of x, in steps of 64 k, three of them in shared
// memory; 2 x 4 warps of 64 x 32 each.
constexpr int kTile = 128;
constexpr int kStep = 64;
constexpr int kStages = 3;
constexpr int kThreads = 256;
constexpr int kStageBytes = 2 * kTile * kStep * static_cast<int>(sizeof(bf16));
constexpr int kWeightTiles = 4;  // of 16 weight rows, per warp
constexpr int kRowTiles = 4;     // of 8 rows, per warp
constexpr int kSums = kWeightTiles * kRowTiles * 4;

struct TiledParams {
  const bf16* weight;
  const bf16* x;
  LinearOutput output;
  int in_dim;
  int weight_rows;
  int rows;
  SkinnySegments segments;
  int cluster;
};

// Row `row` of an operand's stage holds 8 vectors of 16 bytes; odd rows have their halves swapped,
// so that the eight lanes of a phase (two rows, four vectors) touch different banks.
__device__ __forceinline__ int VectorOffset(int row, int vector) {
  return row * kStep * static_cast<int>(sizeof(bf16)) + (vector ^ ((row & 1) << 2)) * 16;
}

__global__ void __launch_bounds__(kThreads, 1) TiledKernel(const __grid_constant__ TiledParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  AllowNextKernel();
  WaitForPreviousKernel();
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int first_row = blockIdx.x * kTile;
  const int first_tile = blockIdx.y * (kTile / 16);
  const bool gated = p.output.epilogue == Epilogue::kGatedGelu;

  // This thread copies vector `vector` of rows copy_row + 32 i of both operands.
  const int vector = threadIdx.x % 8;
  const int copy_row = threadIdx.x / 8;
  const bf16* sources[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = copy_row + 32 * i;
    const int weight_row = WeightRow(gated, p.weight_rows, first_tile + row / 16, row % 16);
    const int x_row = min(first_row + row, p.rows - 1);
    sources[i] = p.weight + static_cast<int64_t>(weight_row) * p.in_dim + 8 * vector;
    sources[4 + i] = p.x + static_cast<int64_t>(x_row) * p.in_dim + 8 * vector;
  }
  const int num_steps = p.segments.num_units;
  const auto copy = [&](int step) {
    if (step < num_steps) {
      unsigned char* stage = shared + step % kStages * kStageBytes;
      const bool valid = step * kStep + 8 * vector < p.in_dim;
      const int offset = valid ? step * kStep : 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        CopyAsync(stage + i / 4 * (kStageBytes / 2) + VectorOffset(copy_row + 32 * (i % 4), vector),
                  sources[i] + (valid ? offset : -8 * vector), valid);
      }
    }
    CommitCopies();
  };
  for (int step = 0; step < kStages - 1; ++step) copy(step);

  // Sums of the segment, of the segments of a block of the skinny kernel's cluster, and (in shared
  // memory, rarely touched) of its blocks so far.
  float acc[kWeightTiles][kRowTiles][4] = {};
  float block_sum[kWeightTiles][kRowTiles][4] = {};
  float* total = reinterpret_cast<float*>(shared + kStages * kStageBytes) + threadIdx.x;
  const int weight_base = warp / 4 * 64 + g;
  const int row_base = warp % 4 * 32 + g;
  int segment = 0;
  for (int step = 0; step < num_steps; ++step) {
    WaitForCopies<kStages - 2>();
    __syncthreads();
    copy(step + kStages - 1);
    const unsigned char* stage = shared + step % kStages * kStageBytes;
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      uint4 b[kRowTiles];
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
        b[n] = *reinterpret_cast<const uint4*>(stage + kStageBytes / 2 +
                                               VectorOffset(row_base + 8 * n, 4 * chunk + t));
      }
#pragma unroll
      for (int m = 0; m < kWeightTiles; ++m) {
        const int row = weight_base + 16 * m;
        const uint4 low = *reinterpret_cast<const uint4*>(stage + VectorOffset(row, 4 * chunk + t));
        const uint4 high =
            *reinterpret_cast<const uint4*>(stage + VectorOffset(row + 8, 4 * chunk + t));
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) MmaChunk(acc[m][n], low, high, b[n]);
      }
    }
    if (step + 1 < p.segments.Begin(segment + 1)) continue;
      // The end of a segment, and of empty ones behind it.
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      float& sum = acc[i / (4 * kRowTiles)][i / 4 % kRowTiles][i % 4];
      float& block = block_sum[i / (4 * kRowTiles)][i / 4 % kRowTiles][i % 4];
      block += sum;
      sum = 0.0f;
    }
    do {
      ++segment;
      if (p.cluster > 1 && segment % kSkinnyWarps == 0) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          float& block = block_sum[i / (4 * kRowTiles)][i / 4 % kRowTiles][i % 4];
          total[i * kThreads] = segment == kSkinnyWarps ? block : total[i * kThreads] + block;
          block = 0.0f;
        }
      }
    } while (segment < p.segments.num_segments && p.segments.Begin(segment + 1) <= step + 1);
  }

#pragma unroll
  for (int m = 0; m < kWeightTiles; ++m) {
    const int tile = first_tile + warp / 4 * kWeightTiles + m;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const int row = first_row + warp % 4 * 32 + 8 * n + 2 * t + column;
        float low = block_sum[m][n][column];
        float high = block_sum[m][n][2 + column];
        if (p.cluster > 1) {
          const int i = (m * kRowTiles + n) * 4 + column;
          low = total[i * kThreads];
          high = total[(i + 2) * kThreads];
        }
        if (row < p.rows) StorePair(p.output, row, tile, g, low, high);
      }
    }
  }
}

constexpr int kSharedBytes =
    kStages * kStageBytes + kSums * kThreads * static_cast<int>(sizeof(float));

dim3 GridFor(const LinearCall& call) {
  return dim3((call.rows + kTile - 1) / kTile,
              (NumLinearTiles(call) + kTile / 16 - 1) / (kTile / 16));
}

}  // namespace

bool TiledIsWorthwhile(const LinearCall& call) {
  const dim3 grid = GridFor(call);
  return call.rows > 48 && (grid.x * grid.y >= 64 || call.rows > 512);
}

void RunTiled(const LaunchContext& context, const LinearCall& call, const SkinnyPlan& plan) {
  static const bool ready = [] {
    LAPIDARY_CUDA_CHECK(cudaFuncSetAttribute(
        TiledKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
    return true;
  }();
  CHECK(ready);
  if (call.residual != nullptr) {
    CHECK(call.x != nullptr) << "the residual update of " << call.rows << " rows needs scratch";
    RunResidualUpdate(context, *call.residual, call.rows, call.in_dim, call.x);
  }
  const TiledParams params{.weight = call.weight,
                           .x = call.x,
                           .output = MakeLinearOutput(call),
                           .in_dim = call.in_dim,
                           .weight_rows = call.out_dim,
                           .rows = call.rows,
                           .segments = MakeSkinnySegments(call.in_dim, plan),
                           .cluster = plan.cluster};
  Launch(context, TiledKernel, GridFor(call), dim3(kThreads), kSharedBytes, params);
}

}  // namespace lapidary::cuda
