// A block of four warps has 128 queries of one head, 32 to a warp, and walks over the picture's
// keys in tiles of 64 or 48: the next tile is on its way while one is used. A warp's weights go
// from the first product to the second in its registers.
#include "base/check.h"
#include "ops/cuda/ptx/warp_mma.cuh"
#include "ops/cuda/towers/patch_attention.h"
#include "ops/cuda/towers/tower_row.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kRowTiles = 2;  // of 16 queries, in a warp
constexpr int kStages = 2;
static_assert(kWarps * kRowTiles * 16 == kPatchTileRows);

template <int kDimValue>
struct PatchForm {
  static constexpr int kDim = kDimValue;
  static constexpr int kKeyTile = kDim > 64 ? 48 : 64;  // What more would need spills.
  static constexpr int kKeyBlocks = kKeyTile / 8;
  static constexpr int kPieces = kDim / 8;  // of 16 bytes, in a row
  // An odd number of pieces from row to row: eight rows' pieces lie in different banks.
  static constexpr int kRowBytes = (kPieces + 1) * 16;
  static_assert((kPieces + 1) % 2 == 1);
  static constexpr int kTileBytes = kKeyTile * kRowBytes;
  static constexpr int kQueryBytes = kPatchTileRows * kRowBytes;
  static constexpr int kSharedBytes =
      kStages * 2 * kTileBytes > kQueryBytes ? kStages * 2 * kTileBytes : kQueryBytes;
  static constexpr int kColumnBlocks = kDim / 8;
  static constexpr int kSteps = kDim / 16;
};

// Rows [first, first + kRows) of a head, as far as there are any; zeros behind the last.
template <typename Form, int kRows>
__device__ __forceinline__ void CopyHeadRows(const bf16* head, int first, int end,
                                             uint32_t shared) {
#pragma unroll
  for (int idx = 0; idx < kRows * Form::kPieces; idx += kThreads) {
    const int at = idx + static_cast<int>(threadIdx.x);
    if (kRows * Form::kPieces % kThreads != 0 && at >= kRows * Form::kPieces) break;
    const int row = at / Form::kPieces;
    const int piece = at % Form::kPieces;
    const bool valid = first + row < end;
    CopyAsync(shared + row * Form::kRowBytes + piece * 16,
              head + int64_t{valid ? first + row : first} * Form::kDim + piece * 8, valid);
  }
}

// Where lane l reads its row of four 8 x 8 matrices: two of rows, two of columns. `rows_first`:
// matrices 0 and 1 are one above the other (else side by side).
template <typename Form>
__device__ __forceinline__ uint32_t LaneOffset(bool rows_first) {
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int down = rows_first ? lane / 8 % 2 : lane / 16;
  const int right = rows_first ? lane / 16 : lane / 8 % 2;
  return (down * 8 + lane % 8) * Form::kRowBytes + right * 16;
}

template <typename Form>
__global__ void __launch_bounds__(kThreads, 2)
    PatchAttentionKernel(const __grid_constant__ PatchAttentionCall call) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  AllowNextKernel();
  WaitForPreviousKernel();
  constexpr float kLog2e = 1.4426950408889634f;
  constexpr int kKeyTile = Form::kKeyTile;
  constexpr int kKeyBlocks = Form::kKeyBlocks;
  const PatchTile tile = call.tiles[blockIdx.x];
  const int head = static_cast<int>(blockIdx.y);
  const int64_t head_at = int64_t{head} * call.rows * Form::kDim;
  const bf16* const keys = call.keys + head_at;
  const bf16* const values = call.values + head_at;
  const uint32_t shared = SharedAddress(shared_bytes);
  const int warp = static_cast<int>(threadIdx.x / kWarpSize);
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);

  CopyHeadRows<Form, kPatchTileRows>(call.queries + head_at, tile.first_query, tile.end, shared);
  CommitCopies();
  WaitForCopies<0>();
  __syncthreads();
  uint32_t queries[kRowTiles][Form::kSteps][4];
#pragma unroll
  for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
#pragma unroll
    for (int step = 0; step < Form::kSteps; ++step) {
      LoadMatrices(queries[row_tile][step],
                   shared + (warp * kRowTiles + row_tile) * 16 * Form::kRowBytes + step * 32 +
                       LaneOffset<Form>(/*rows_first=*/true));
    }
  }
  __syncthreads();

  const auto stage_at = [&](int stage) { return shared + stage * 2 * Form::kTileBytes; };
  const auto start_tile = [&](int first, int stage) {
    CopyHeadRows<Form, Form::kKeyTile>(keys, first, tile.end, stage_at(stage));
    CopyHeadRows<Form, Form::kKeyTile>(values, first, tile.end, stage_at(stage) + Form::kTileBytes);
  };
  start_tile(tile.begin, 0);
  CommitCopies();

  float sums[kRowTiles][Form::kColumnBlocks][4] = {};
  float maxima[kRowTiles][2];
  float totals[kRowTiles][2];
#pragma unroll
  for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      maxima[row_tile][half] = -INFINITY;
      totals[row_tile][half] = 0.0f;
    }
  }

  int stage = 0;
#pragma unroll 1
  for (int first = tile.begin; first < tile.end; first += kKeyTile, stage = 1 - stage) {
    if (first + kKeyTile < tile.end) start_tile(first + kKeyTile, 1 - stage);
    CommitCopies();
    WaitForCopies<1>();
    __syncthreads();
    const uint32_t keys_at = stage_at(stage) + LaneOffset<Form>(/*rows_first=*/false);
    const uint32_t values_at =
        stage_at(stage) + Form::kTileBytes + LaneOffset<Form>(/*rows_first=*/true);

    float scores[kRowTiles][kKeyBlocks][4] = {};
#pragma unroll
    for (int step = 0; step < Form::kSteps; ++step) {
#pragma unroll
      for (int block = 0; block < kKeyBlocks; block += 2) {
        uint32_t b[4];
        LoadMatrices(b, keys_at + block * 8 * Form::kRowBytes + step * 32);
#pragma unroll
        for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
          Mma(scores[row_tile][block], queries[row_tile][step], b[0], b[1]);
          Mma(scores[row_tile][block + 1], queries[row_tile][step], b[2], b[3]);
        }
      }
    }
    if (first + kKeyTile > tile.end) {
#pragma unroll
      for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
#pragma unroll
        for (int block = 0; block < kKeyBlocks; ++block) {
#pragma unroll
          for (int idx = 0; idx < 4; ++idx) {
            const int key = first + block * 8 + lane % 4 * 2 + idx % 2;
            if (key >= tile.end) scores[row_tile][block][idx] = -INFINITY;
          }
        }
      }
    }

    // Weights; the first key of a tile exists, so a maximum is a number.
    uint32_t weights[kRowTiles][kKeyTile / 16][4];
#pragma unroll
    for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float highest = -INFINITY;
#pragma unroll
        for (int block = 0; block < kKeyBlocks; ++block) {
          highest = fmaxf(highest, fmaxf(scores[row_tile][block][2 * half],
                                         scores[row_tile][block][2 * half + 1]));
        }
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 2));
        const float now = fmaxf(maxima[row_tile][half], highest * kLog2e);
        const float shrink = Exp2(maxima[row_tile][half] - now);
        maxima[row_tile][half] = now;
        float total = 0.0f;
#pragma unroll
        for (int block = 0; block < kKeyBlocks; ++block) {
          const float low = Exp2(__fmaf_rn(scores[row_tile][block][2 * half], kLog2e, -now));
          const float high = Exp2(__fmaf_rn(scores[row_tile][block][2 * half + 1], kLog2e, -now));
          total += low + high;
          weights[row_tile][block / 2][block % 2 * 2 + half] = PackBf16x2(low, high);
        }
        totals[row_tile][half] = totals[row_tile][half] * shrink + total;
#pragma unroll
        for (int block = 0; block < Form::kColumnBlocks; ++block) {
          sums[row_tile][block][2 * half] *= shrink;
          sums[row_tile][block][2 * half + 1] *= shrink;
        }
      }
    }
#pragma unroll
    for (int step = 0; step < kKeyTile / 16; ++step) {
#pragma unroll
      for (int block = 0; block < Form::kColumnBlocks; block += 2) {
        uint32_t b[4];
        LoadMatricesTransposed(b, values_at + step * 16 * Form::kRowBytes + block * 16);
#pragma unroll
        for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
          Mma(sums[row_tile][block], weights[row_tile][step], b[0], b[1]);
          Mma(sums[row_tile][block + 1], weights[row_tile][step], b[2], b[3]);
        }
      }
    }
    __syncthreads();  // All are done with this stage before it is filled again.
  }

#pragma unroll
  for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = totals[row_tile][half];
      total += __shfl_xor_sync(0xffffffff, total, 1);
      total += __shfl_xor_sync(0xffffffff, total, 2);
      const int row = tile.first_query + (warp * kRowTiles + row_tile) * 16 + half * 8 + lane / 4;
      if (row >= tile.end) continue;
      const float inverse = __frcp_rn(total);
      bf16* const out = call.out + (int64_t{row} * call.num_heads + head) * call.head_dim;
#pragma unroll
      for (int block = 0; block < Form::kColumnBlocks; ++block) {
        const int column = block * 8 + lane % 4 * 2;
        if (column >= call.head_dim) continue;
        *reinterpret_cast<uint32_t*>(out + column) =
            PackBf16x2(Clamp(sums[row_tile][block][2 * half] * inverse, call.out_bounds),
                       Clamp(sums[row_tile][block][2 * half + 1] * inverse, call.out_bounds));
      }
    }
  }
}

template <int kDim>
void LaunchForm(const LaunchContext& context, const PatchAttentionCall& call) {
  using Form = PatchForm<kDim>;
  Launch(context, PatchAttentionKernel<Form>, dim3(call.num_tiles, call.num_heads), dim3(kThreads),
         Form::kSharedBytes, call);
}

}  // namespace

void RunPatchAttention(const LaunchContext& context, const PatchAttentionCall& call) {
  CHECK_OK(PatchAttentionSupports(call.head_dim));
  switch (PaddedHeadDim(call.head_dim)) {
    case 32:
      return LaunchForm<32>(context, call);
    case 64:
      return LaunchForm<64>(context, call);
    default:
      return LaunchForm<80>(context, call);
  }
}

}  // namespace lapidary::cuda
