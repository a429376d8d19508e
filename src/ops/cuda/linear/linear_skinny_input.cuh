// What a block of the kernel for few rows (linear_skinny.h) is given, and how it makes its slice of
// x in shared memory: a copy, or the residual update of all rows.
#pragma once

#include "ops/cuda/linear/linear_skinny.h"
#include "ops/cuda/linear/linear_store.cuh"
#include "ops/cuda/linear/weight_tile.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/row_norm.cuh"

namespace lapidary::cuda {

static_assert(kSkinnyThreads == kNormThreads, "the residual update runs on the same threads");

inline constexpr int kSkinnyFeatures = 16;                // of a tile: the rows of one mma
inline constexpr int kSkinnyPairs = kSkinnyFeatures / 2;  // a lane holds features g and g + 8
inline constexpr int kSkinnyColumns = kMaxStreamedRows;   // rows of x: the columns of one mma
static_assert(kSkinnyColumns == 8);

// The number of segments and what each covers, in units of 64 values.
struct SkinnySegments {
  int num_units = 0;
  int num_segments = 0;
  __host__ __device__ int Begin(int segment) const { return segment * num_units / num_segments; }
};

struct SkinnyParams {
  WeightMatrix weight;
  const bf16* x;
  LinearOutput output;
  int in_dim;
  int rows;
  int num_tiles;
  int cluster;
  SkinnySegments segments;
  int x_stride;  // of a row of x in shared memory
  bool has_residual;
  bool stage_norms;
  ResidualUpdate residual;
};

// What is loaded of x past its last segment, and never used.
inline constexpr int kXPadding = 64;

// Shared memory: partial sums, x, then what the residual update needs. Byte offsets, all multiples
// of 16.
struct SkinnyLayout {
  int partials = 0;   // f32 [2][warps][kSkinnyPairs][2][columns]
  int exchange = 0;   // f32 [2][cluster][kSkinnyPairs / cluster][rows][2]
  int x = 0;          // bf16 [rows][x_stride] and kXPadding
  int norms = 0;      // f32 [2][in_dim], only when staged
  int hidden = 0;     // f32 [rows][in_dim]
  int block_out = 0;  // bf16 [rows][in_dim]
  int total = 0;
};

__host__ __device__ __forceinline__ SkinnyLayout MakeSkinnyLayout(int rows, int x_stride,
                                                                  int in_dim, bool has_residual,
                                                                  bool stage_norms) {
  SkinnyLayout layout;
  int offset =
      2 * kSkinnyWarps * kSkinnyFeatures * kSkinnyColumns * static_cast<int>(sizeof(float));
  layout.exchange = offset;
  offset += 2 * kSkinnyFeatures * rows * static_cast<int>(sizeof(float));
  layout.x = offset;
  offset += (rows * x_stride + kXPadding) * static_cast<int>(sizeof(bf16));
  layout.norms = offset;
  if (has_residual) {
    if (stage_norms) offset += 2 * in_dim * static_cast<int>(sizeof(float));
    layout.hidden = offset;
    offset += rows * in_dim * static_cast<int>(sizeof(float));
    layout.block_out = offset;
    offset += rows * in_dim * static_cast<int>(sizeof(bf16));
  }
  layout.total = offset;
  return layout;
}

// x of this block's slice [k_begin, k_end) into shared memory, zeros past in_dim.
__device__ __forceinline__ void CopyX(const SkinnyParams& p, int k_begin, int k_end,
                                      bf16* x_shared) {
  const int num_vectors = (k_end - k_begin) / 8;
  const bf16* x = p.x;
#pragma unroll 1
  for (int row = 0; row < p.rows; ++row) {
#pragma unroll 1
    for (int i = threadIdx.x; i < num_vectors; i += kSkinnyThreads) {
      const int k = k_begin + 8 * i;
      const bool valid = k < p.in_dim;
      CopyAsync(x_shared + row * p.x_stride + 8 * i, x + (valid ? k : 0), valid);
    }
    x += p.in_dim;
  }
  CommitCopies();
}

__device__ __forceinline__ void StageNorms(const SkinnyParams& p, float* norms) {
#pragma unroll 1
  for (int i = threadIdx.x; i < p.in_dim / 4; i += kSkinnyThreads) {
    if (p.residual.post_norm != nullptr) CopyAsync(norms + 4 * i, p.residual.post_norm + 4 * i);
    if (p.residual.pre_norm != nullptr) {
      CopyAsync(norms + p.in_dim + 4 * i, p.residual.pre_norm + 4 * i);
    }
  }
  CommitCopies();
}

// The residual update of all rows; the slice [k_begin, k_end) of x goes to shared memory.
__device__ __forceinline__ void UpdateResidual(const SkinnyParams& p, int rows, int k_begin,
                                               int k_end, bool writes_hidden, const float* norms,
                                               float* hidden, bf16* block_out, bf16* x_shared,
                                               float (*scratch)[kNormWarps]) {
  const ResidualUpdate& update = p.residual;
  const int num_quads = p.in_dim / 4;
  const bool has_block_out = update.block_out != nullptr;
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    const int start = row * p.in_dim;
#pragma unroll 1
    for (int i = threadIdx.x; i < num_quads; i += kSkinnyThreads) {
      CopyAsync(hidden + start + 4 * i, update.hidden + start + 4 * i);
      if (has_block_out && i < num_quads / 2) {
        CopyAsync(block_out + start + 8 * i, update.block_out + start + 8 * i);
      }
    }
  }
  CommitCopies();
  // Past in_dim, up to the end of its unit, x is zero.
  for (int k = max(k_begin, p.in_dim) + static_cast<int>(threadIdx.x); k < k_end;
       k += kSkinnyThreads) {
    for (int row = 0; row < rows; ++row) {
      x_shared[row * p.x_stride + k - k_begin] = __float2bfloat16_rn(0.0f);
    }
  }
  WaitForCopies<0>();
  __syncthreads();

  const float4* post_norm =
      reinterpret_cast<const float4*>(p.stage_norms ? norms : update.post_norm);
  const float4* pre_norm =
      reinterpret_cast<const float4*>(p.stage_norms ? norms + p.in_dim : update.pre_norm);
  int num_sums = 0;
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    float4* h_row = reinterpret_cast<float4*>(hidden + row * p.in_dim);
    const uint2* block_row = reinterpret_cast<const uint2*>(block_out + row * p.in_dim);
    float inverse_rms = 0.0f;
    if (has_block_out) {
      float sum = 0.0f;
#pragma unroll 1
      for (int i = threadIdx.x; i < num_quads; i += kSkinnyThreads) {
        sum = AddSquares(sum, UnpackBf16x4(block_row[i]));
      }
      inverse_rms = InverseRms(BlockSum(sum, scratch[num_sums++ & 1]), p.in_dim, update.eps);
    }
    float sum = 0.0f;
#pragma unroll 1
    for (int i = threadIdx.x; i < num_quads; i += kSkinnyThreads) {
      float4 addend = {0.0f, 0.0f, 0.0f, 0.0f};
      if (has_block_out) addend = Normed(UnpackBf16x4(block_row[i]), inverse_rms, post_norm[i]);
      const float4 h = Updated(h_row[i], addend, update.scale);
      if (writes_hidden) {
        reinterpret_cast<float4*>(update.hidden_out + static_cast<int64_t>(row) * p.in_dim)[i] = h;
      }
      sum = AddSquares(sum, h);
      h_row[i] = h;
    }
    inverse_rms = InverseRms(BlockSum(sum, scratch[num_sums++ & 1]), p.in_dim, update.eps);
#pragma unroll 1
    for (int i = threadIdx.x; i < num_quads; i += kSkinnyThreads) {
      if (4 * i < k_begin || 4 * i >= k_end) continue;
      float4 h = h_row[i];
      if (update.pre_norm != nullptr) h = Normed(h, inverse_rms, pre_norm[i]);
      *reinterpret_cast<uint2*>(x_shared + row * p.x_stride + 4 * i - k_begin) = PackBf16x4(h);
    }
  }
}

// Makes or copies this block's slice [k_begin, k_end) of x, once the kernel before is done; what
// can be loaded before that is.
__device__ __forceinline__ void PrepareX(const SkinnyParams& p, int k_begin, int k_end,
                                         const SkinnyLayout& layout, unsigned char* shared,
                                         float (*scratch)[kNormWarps]) {
  bf16* x_shared = reinterpret_cast<bf16*>(shared + layout.x);
  if (p.has_residual) {
    float* norms = reinterpret_cast<float*>(shared + layout.norms);
    if (p.stage_norms) StageNorms(p, norms);
    WaitForPreviousKernel();
    UpdateResidual(p, p.rows, k_begin, k_end, blockIdx.x == 0 && p.residual.hidden_out != nullptr,
                   norms, reinterpret_cast<float*>(shared + layout.hidden),
                   reinterpret_cast<bf16*>(shared + layout.block_out), x_shared, scratch);
  } else {
    WaitForPreviousKernel();
    CopyX(p, k_begin, k_end, x_shared);
    WaitForCopies<0>();
  }
}

}  // namespace lapidary::cuda
