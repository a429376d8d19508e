// How the weights of a format become the A operands of tensor-core products, 16 weight rows by some
// columns at a time: what a kernel with weights as the A operand is a template over.
//
// A WeightTile<type> knows the format's layout in memory and nothing of the kernel:
//   kStep       columns that one Stage covers, a multiple of 32 (chunks of mma.cuh)
//   kZeroesInput  x is zero in columns that nobody looks at, and past a segment's end; else
//   anything Stage       the registers a lane loads for a step Seek()      makes it point to the
//   lane's share of a tile of 16 rows Load()      a Stage, of the step that is `ahead` further on
//   than `step`; not `valid`: nothing
//               that counts
//   Advance()   to later steps, as `step` grows
//   Multiply()  acc += the step's 16 rows times its x, scales included, in f32
#pragma once

#include "ops/cuda/launch.h"
#include "ops/cuda/linear/linear_store.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/ptx/warp_mma.cuh"
#include "ops/cuda/tile_type.h"

namespace lapidary::cuda {

// A matrix of weights, as a kernel gets it.
struct WeightMatrix {
  const void* data;
  int rows;
  int cols;
  bool gated;  // [gate; up]: a tile is 8 rows of each half (WeightRow)
};

template <TileType kType>
struct WeightTile;

// bf16, row-major.
template <>
struct WeightTile<TileType::kBf16> {
  static constexpr int kStep = 32;
  // Without the branch that this takes, the compiler reorders the loop to its disadvantage.
  static constexpr bool kZeroesInput = true;
  struct Stage {
    uint4 low, high;
  };

  const bf16* low;  // the lane's rows g and g + 8 of the tile
  const bf16* high;

  __device__ __forceinline__ void Seek(const WeightMatrix& w, int tile, int column, int lane) {
    const int g = lane / 4;
    const int t = lane % 4;
    const auto* values = static_cast<const bf16*>(w.data) + column + 8 * t;
    low = values + static_cast<int64_t>(WeightRow(w.gated, w.rows, tile, g)) * w.cols;
    high = values + static_cast<int64_t>(WeightRow(w.gated, w.rows, tile, g + 8)) * w.cols;
  }
  // Steps of the lane from `column` on that lie within the row: its columns are the 8 from 8 t on.
  static __device__ __forceinline__ int NumSteps(const WeightMatrix& w, int column, int lane) {
    return max(0, (w.cols - column - 8 * (lane % 4) + 31) / 32);
  }
  __device__ __forceinline__ void Load(int step, int ahead, bool valid, Stage& stage) const {
    // Zeros: of a step at a row's end some lanes have nothing.
    stage.low = LoadWeight(low + 32 * (step + ahead), valid);
    stage.high = LoadWeight(high + 32 * (step + ahead), valid);
  }
  __device__ __forceinline__ void Advance(int) {}
  static __device__ __forceinline__ void Multiply(float (&acc)[4], const Stage& stage,
                                                  const uint4 (&x)[1]) {
    MmaChunk(acc, stage.low, stage.high, x[0]);
  }
};

// (word & mask) | bits, (word & mask) ^ bits.
__device__ __forceinline__ uint32_t MaskOr(uint32_t word, uint32_t mask, uint32_t bits) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
  return result;
}
__device__ __forceinline__ uint32_t MaskXor(uint32_t word, uint32_t mask, uint32_t bits) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
  return result;
}
__device__ __forceinline__ uint32_t AddBf16Pairs(uint32_t a, uint32_t b) {
  const __nv_bfloat162 sum = __hadd2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                     *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&sum);
}

// Two codes as bf16, from where they lie in the two halves of a word; other bits do not count.
//
// 4 bits, the lowest of each half: 128 + code is 0x4300 | code, and 128 + code - 136 is exact.
__device__ __forceinline__ uint32_t ValuesOf4BitPair(uint32_t word) {
  return AddBf16Pairs(MaskOr(word, 0x000f000fu, 0x43004300u), 0xc308c308u);
}
// 8 bits: 128 + (code & 127) is 0x4300 | (code & 127); less 128 where bit 7 is set (0xc300), else
// less 256 (0xc380), it is code - 128, exactly.
__device__ __forceinline__ uint32_t ValuesOf8BitPair(uint32_t word) {
  return AddBf16Pairs(MaskOr(word, 0x007f007fu, 0x43004300u),
                      MaskXor(word, 0x00800080u, 0xc380c380u));
}

// A scale twice, as the factor of a pair. One in f16 has 11 bits: what bf16 holds of them, and the
// other three.
template <bool kF16Scales>
struct PairScale {
  uint32_t high;
  uint32_t low;  // f16 alone

  // Of chunk 0 or 1, of which the scales are the halves of a word.
  __device__ __forceinline__ PairScale(uint32_t scales, int chunk) {
    if constexpr (kF16Scales) {
      const __half2 pair = *reinterpret_cast<const __half2*>(&scales);
      const float scale = chunk == 0 ? __low2float(pair) : __high2float(pair);
      const uint32_t bits = __float_as_uint(scale);
      high = __byte_perm(bits, 0, 0x3232);
      const float rest = scale - __uint_as_float(bits & 0xffff0000u);
      low = __byte_perm(__float_as_uint(rest), 0, 0x3232);
    } else {
      high = __byte_perm(scales, 0, chunk == 0 ? 0x1010 : 0x3232);
    }
  }
};
// bf16(code * scale) of both codes. The products with the low part of codes of 4 bits are exact,
// those of 8 bits to 2^-17 of the result.
template <bool kF16Scales>
__device__ __forceinline__ uint32_t ScaledPair(uint32_t codes, const PairScale<kF16Scales>& scale) {
  const auto pair = [](const uint32_t& word) {
    return *reinterpret_cast<const __nv_bfloat162*>(&word);
  };
  __nv_bfloat162 scaled;
  if constexpr (kF16Scales) {
    scaled = __hfma2(pair(codes), pair(scale.high), __hmul2(pair(codes), pair(scale.low)));
  } else {
    scaled = __hmul2(pair(codes), pair(scale.high));
  }
  return *reinterpret_cast<const uint32_t*>(&scaled);
}

// What the tiled formats (tensor/weight_tiles.h) have in common. kLaneBytes: codes of a lane, a
// stripe and a unit.
template <int kLaneBytes, bool kF16Scales>
struct StripedTile {
  static constexpr int kStep = 64;
  static constexpr bool kZeroesInput = false;
  static constexpr int kUnitBytes = 32 * kLaneBytes + 32;

  // The lane's codes in the stripes of rows 0 .. 7 and 8 .. 15, and its scales.
  const unsigned char* low;
  const unsigned char* high;
  const unsigned char* low_scales;
  const unsigned char* high_scales;

  __device__ __forceinline__ void Seek(const WeightMatrix& w, int tile, int column, int lane) {
    const int64_t stripe_bytes = static_cast<int64_t>(w.cols / 64) * kUnitBytes;
    const int last = w.rows / 8 - 1;
    const int first = w.gated ? tile : 2 * tile;
    const int second = w.gated ? tile + w.rows / 16 : min(2 * tile + 1, last);
    const auto* lane_codes = static_cast<const unsigned char*>(w.data) +
                             static_cast<int64_t>(column / 64) * kUnitBytes + lane * kLaneBytes;
    low = lane_codes + first * stripe_bytes;
    high = lane_codes + second * stripe_bytes;
    const int to_scales = (32 - lane) * kLaneBytes + lane / 4 * 4;
    low_scales = low + to_scales;
    high_scales = high + to_scales;
  }
  __device__ __forceinline__ void Advance(int steps) {
    low += steps * kUnitBytes;
    high += steps * kUnitBytes;
    low_scales += steps * kUnitBytes;
    high_scales += steps * kUnitBytes;
  }
  static __device__ __forceinline__ int NumSteps(const WeightMatrix& w, int column, int) {
    return max(0, (w.cols - column) / 64);
  }

  // Two codes, as bf16, times their scale.
  template <int kChunk>
  static __device__ __forceinline__ float2 Product(uint32_t pair, uint32_t scales_of_row) {
    const float scale = ScaleOf<kChunk>(scales_of_row);
    return {__uint_as_float(pair << 16) * scale, __uint_as_float(pair & 0xffff0000u) * scale};
  }
  template <int kChunk>
  static __device__ __forceinline__ void StoreProducts(const uint32_t (&pairs)[4],
                                                       uint32_t scales_of_row, float (&values)[8]) {
#pragma unroll
    for (int idx = 0; idx < 4; ++idx) {
      const float2 product = Product<kChunk>(pairs[idx], scales_of_row);
      values[2 * idx] = product.x;
      values[2 * idx + 1] = product.y;
    }
  }
  // The same, rounded to bf16.
  template <int kChunk>
  static __device__ __forceinline__ uint32_t Scaled(uint32_t pair, uint32_t scales_of_row) {
    return ScaledPair(pair, PairScale<kF16Scales>(scales_of_row, kChunk));
  }
  static __device__ __forceinline__ uint32_t LoadScales(const unsigned char* unit, int lane) {
    uint32_t scales = 0;
    LoadIfValid(scales, unit + ScalesOfLane(lane), true);
    return scales;
  }

  // acc += scale * sums, of a chunk; `scales`: of rows g and g + 8, chunk 0 in the low halves.
  // kOneColumn: all columns of x are the same row, so every other sum is enough.
  // `acc`: four sums, maybe of a longer array in registers.
  template <int kChunk, bool kOneColumn = false>
  static __device__ __forceinline__ void AddScaled(float* acc, const float (&sums)[4],
                                                   uint32_t low_scales, uint32_t high_scales) {
    const float low_scale = ScaleOf<kChunk>(low_scales);
    const float high_scale = ScaleOf<kChunk>(high_scales);
    acc[0] = fmaf(sums[0], low_scale, acc[0]);
    if (!kOneColumn) acc[1] = fmaf(sums[1], low_scale, acc[1]);
    acc[2] = fmaf(sums[2], high_scale, acc[2]);
    if (!kOneColumn) acc[3] = fmaf(sums[3], high_scale, acc[3]);
  }

  // In a unit of a stripe.
  static __device__ __forceinline__ int CodesOfLane(int lane) { return lane * kLaneBytes; }
  static __device__ __forceinline__ int ScalesOfLane(int lane) {
    return 32 * kLaneBytes + lane / 4 * 4;
  }

 private:
  template <int kChunk>
  static __device__ __forceinline__ float ScaleOf(uint32_t scales_of_row) {
    if constexpr (kF16Scales) {
      const __half2 pair = *reinterpret_cast<const __half2*>(&scales_of_row);
      return kChunk == 0 ? __low2float(pair) : __high2float(pair);
    } else {
      return __uint_as_float(kChunk == 0 ? scales_of_row << 16 : scales_of_row & 0xffff0000u);
    }
  }
};

// Codes of 4 bits.
template <bool kF16Scales>
struct Tile4 : StripedTile<8, kF16Scales> {
  using Base = StripedTile<8, kF16Scales>;
  struct Stage {
    uint2 low, high;
    uint32_t low_scales, high_scales;
  };

  __device__ __forceinline__ void Load(int, int ahead, bool valid, Stage& stage) const {
    const int unit = ahead * Base::kUnitBytes;
    LoadIfValid(stage.low, this->low + unit, valid);
    LoadIfValid(stage.high, this->high + unit, valid);
    LoadIfValid(stage.low_scales, this->low_scales + unit, valid);
    LoadIfValid(stage.high_scales, this->high_scales + unit, valid);
  }
  // From shared memory: of two stripes of a unit, `high` bytes apart.
  static __device__ __forceinline__ void LoadShared(Stage& stage, uint32_t codes, uint32_t scales,
                                                    uint32_t high) {
    stage.low = LoadShared8(codes);
    stage.high = LoadShared8(codes + high);
    stage.low_scales = LoadShared4(scales);
    stage.high_scales = LoadShared4(scales + high);
  }
  template <bool kOneColumn = false>
  static __device__ __forceinline__ void Multiply(float (&acc)[4], const Stage& stage,
                                                  const uint4 (&x)[2]) {
    MultiplyChunk<0, kOneColumn>(acc, stage, x[0]);
    MultiplyChunk<1, kOneColumn>(acc, stage, x[1]);
  }
  // The A operands of a chunk's two instructions, not yet scaled.
  template <int kChunk>
  static __device__ __forceinline__ void MakeOperands(const Stage& stage,
                                                      uint32_t (&operands)[2][4]) {
    const uint32_t low = kChunk == 0 ? stage.low.x : stage.low.y;
    const uint32_t high = kChunk == 0 ? stage.high.x : stage.high.y;
    operands[0][0] = Values<0>(low);
    operands[0][1] = Values<0>(high);
    operands[0][2] = Values<1>(low);
    operands[0][3] = Values<1>(high);
    operands[1][0] = Values<2>(low);
    operands[1][1] = Values<2>(high);
    operands[1][2] = Values<3>(low);
    operands[1][3] = Values<3>(high);
  }
  // Columns at .. at + 7 of a row, exactly.
  static __device__ __forceinline__ void LoadRow8(const void* data, int64_t row, int cols, int at,
                                                  float (&values)[8]) {
    const int lane = static_cast<int>(row % 8) * 4 + at % 32 / 8;
    const auto* unit = static_cast<const unsigned char*>(data) +
                       (row / 8 * (cols / 64) + at / 64) * Base::kUnitBytes;
    const uint32_t scales = Base::LoadScales(unit, lane);
    uint2 codes = {};
    LoadIfValid(codes, unit + Base::CodesOfLane(lane), true);
    if (at % 64 < 32) {
      FloatsOf<0>(codes.x, scales, values);
    } else {
      FloatsOf<1>(codes.y, scales, values);
    }
  }
  // The lane's 8 columns of each chunk of a unit of a stripe, in bf16.
  static __device__ __forceinline__ void Dequantise(const unsigned char* unit, int lane,
                                                    uint4 (&values)[2]) {
    uint2 codes = {};
    LoadIfValid(codes, unit + 8 * lane, true);
    const uint32_t scales = Base::LoadScales(unit, lane);
    values[0] = ScaledValues<0>(codes.x, scales);
    values[1] = ScaledValues<1>(codes.y, scales);
  }

 private:
  template <int kPair>  // columns 2 kPair and 2 kPair + 1 of a lane's 8
  static __device__ __forceinline__ uint32_t Values(uint32_t word) {
    return ValuesOf4BitPair(word >> (4 * kPair));
  }
  template <int kChunk>
  static __device__ __forceinline__ void FloatsOf(uint32_t word, uint32_t scales,
                                                  float (&values)[8]) {
    const uint32_t pairs[4] = {Values<0>(word), Values<1>(word), Values<2>(word), Values<3>(word)};
    Base::template StoreProducts<kChunk>(pairs, scales, values);
  }
  template <int kChunk>
  static __device__ __forceinline__ uint4 ScaledValues(uint32_t word, uint32_t scales) {
    return {Base::template Scaled<kChunk>(Values<0>(word), scales),
            Base::template Scaled<kChunk>(Values<1>(word), scales),
            Base::template Scaled<kChunk>(Values<2>(word), scales),
            Base::template Scaled<kChunk>(Values<3>(word), scales)};
  }
  template <int kChunk, bool kOneColumn>
  static __device__ __forceinline__ void MultiplyChunk(float (&acc)[4], const Stage& stage,
                                                       const uint4& x) {
    float sums[4] = {};
    uint32_t operands[2][4];
    MakeOperands<kChunk>(stage, operands);
    Mma(sums, operands[0], x.x, x.y);
    Mma(sums, operands[1], x.z, x.w);
    Base::template AddScaled<kChunk, kOneColumn>(acc, sums, stage.low_scales, stage.high_scales);
  }
};

// Codes of 8 bits.
template <bool kF16Scales>
struct Tile8 : StripedTile<16, kF16Scales> {
  using Base = StripedTile<16, kF16Scales>;
  struct Stage {
    uint4 low, high;
    uint32_t low_scales, high_scales;
  };

  __device__ __forceinline__ void Load(int, int ahead, bool valid, Stage& stage) const {
    const int unit = ahead * Base::kUnitBytes;
    LoadIfValid(stage.low, this->low + unit, valid);
    LoadIfValid(stage.high, this->high + unit, valid);
    LoadIfValid(stage.low_scales, this->low_scales + unit, valid);
    LoadIfValid(stage.high_scales, this->high_scales + unit, valid);
  }
  // From shared memory: of two stripes of a unit, `high` bytes apart.
  static __device__ __forceinline__ void LoadShared(Stage& stage, uint32_t codes, uint32_t scales,
                                                    uint32_t high) {
    stage.low = cuda::LoadShared(codes);
    stage.high = cuda::LoadShared(codes + high);
    stage.low_scales = LoadShared4(scales);
    stage.high_scales = LoadShared4(scales + high);
  }
  template <bool kOneColumn = false>
  static __device__ __forceinline__ void Multiply(float (&acc)[4], const Stage& stage,
                                                  const uint4 (&x)[2]) {
    MultiplyChunk<0, kOneColumn>(acc, stage, x[0]);
    MultiplyChunk<1, kOneColumn>(acc, stage, x[1]);
  }
  // The A operands of a chunk's two instructions, not yet scaled.
  template <int kChunk>
  static __device__ __forceinline__ void MakeOperands(const Stage& stage,
                                                      uint32_t (&operands)[2][4]) {
    const uint32_t low[2] = {kChunk == 0 ? stage.low.x : stage.low.z,
                             kChunk == 0 ? stage.low.y : stage.low.w};
    const uint32_t high[2] = {kChunk == 0 ? stage.high.x : stage.high.z,
                              kChunk == 0 ? stage.high.y : stage.high.w};
#pragma unroll
    for (int idx = 0; idx < 2; ++idx) {
      operands[idx][0] = Values(low[idx]);
      operands[idx][1] = Values(high[idx]);
      operands[idx][2] = Values(low[idx] >> 8);
      operands[idx][3] = Values(high[idx] >> 8);
    }
  }
  // Columns at .. at + 7 of a row, exactly.
  static __device__ __forceinline__ void LoadRow8(const void* data, int64_t row, int cols, int at,
                                                  float (&values)[8]) {
    const int lane = static_cast<int>(row % 8) * 4 + at % 32 / 8;
    const auto* unit = static_cast<const unsigned char*>(data) +
                       (row / 8 * (cols / 64) + at / 64) * Base::kUnitBytes;
    const uint32_t scales = Base::LoadScales(unit, lane);
    uint4 codes = {};
    LoadIfValid(codes, unit + Base::CodesOfLane(lane), true);
    if (at % 64 < 32) {
      FloatsOf<0>({codes.x, codes.y}, scales, values);
    } else {
      FloatsOf<1>({codes.z, codes.w}, scales, values);
    }
  }
  // The lane's 8 columns of each chunk of a unit of a stripe, in bf16.
  static __device__ __forceinline__ void Dequantise(const unsigned char* unit, int lane,
                                                    uint4 (&values)[2]) {
    uint4 codes = {};
    LoadIfValid(codes, unit + 16 * lane, true);
    const uint32_t scales = Base::LoadScales(unit, lane);
    values[0] = ScaledValues<0>({codes.x, codes.y}, scales);
    values[1] = ScaledValues<1>({codes.z, codes.w}, scales);
  }

 private:
  // Of four columns in a word the first two are bytes 0 and 2, the others 1 and 3.
  static __device__ __forceinline__ uint32_t Values(uint32_t word) {
    return ValuesOf8BitPair(word);
  }
  template <int kChunk>
  static __device__ __forceinline__ void FloatsOf(uint2 words, uint32_t scales,
                                                  float (&values)[8]) {
    const uint32_t pairs[4] = {Values(words.x), Values(words.x >> 8), Values(words.y),
                               Values(words.y >> 8)};
    Base::template StoreProducts<kChunk>(pairs, scales, values);
  }
  template <int kChunk>
  static __device__ __forceinline__ uint4 ScaledValues(uint2 words, uint32_t scales) {
    return {Base::template Scaled<kChunk>(Values(words.x), scales),
            Base::template Scaled<kChunk>(Values(words.x >> 8), scales),
            Base::template Scaled<kChunk>(Values(words.y), scales),
            Base::template Scaled<kChunk>(Values(words.y >> 8), scales)};
  }
  template <int kChunk, bool kOneColumn>
  static __device__ __forceinline__ void MultiplyChunk(float (&acc)[4], const Stage& stage,
                                                       const uint4& x) {
    float sums[4] = {};
    uint32_t operands[2][4];
    MakeOperands<kChunk>(stage, operands);
    Mma(sums, operands[0], x.x, x.y);
    Mma(sums, operands[1], x.z, x.w);
    Base::template AddScaled<kChunk, kOneColumn>(acc, sums, stage.low_scales, stage.high_scales);
  }
};

template <>
struct WeightTile<TileType::kU4F16> : Tile4<true> {};
template <>
struct WeightTile<TileType::kU4Bf16> : Tile4<false> {};
template <>
struct WeightTile<TileType::kS8F16> : Tile8<true> {};
template <>
struct WeightTile<TileType::kS8Bf16> : Tile8<false> {};

}  // namespace lapidary::cuda
