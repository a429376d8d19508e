#include <cuda_fp16.h>

#include "base/check.h"
#include "ops/cuda/synthetic.h"
#include "ops/cuda/tile_type.h"

namespace lapidary::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    FillSyntheticKernel(SyntheticLaw law, int64_t count, bf16* to) {
  WaitForPreviousKernel();
  for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < count;
       at += int64_t{gridDim.x} * kThreads) {
    to[at] = __float2bfloat16_rn(SyntheticValue(law, static_cast<uint64_t>(at)));
  }
}

// A word of codes is bits of the law's generator; two scales are about such that weights are as
// large as the law's. `code_words`: of a unit of 8 rows and 64 columns, before its 8 words of
// scales.
__global__ void __launch_bounds__(kThreads)
    FillTilesKernel(SyntheticLaw law, float scale, bool f16, int code_words, int64_t num_words,
                    uint32_t* to) {
  WaitForPreviousKernel();
  for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < num_words;
       at += int64_t{gridDim.x} * kThreads) {
    const uint64_t bits =
        MixBits(law.key + static_cast<uint64_t>(at) * uint64_t{0x9e3779b97f4a7c15u});
    if (at % (code_words + 8) < code_words) {
      to[at] = static_cast<uint32_t>(bits >> 32);
      continue;
    }
    const auto half = [&](uint32_t random) {
      const float value = scale * (0.75f + static_cast<float>(random & 0xffff) * 0x1p-17f);
      return f16 ? __half_as_ushort(__float2half_rn(value))
                 : __bfloat16_as_ushort(__float2bfloat16_rn(value));
    };
    const uint32_t low = half(static_cast<uint32_t>(bits));
    to[at] = low | static_cast<uint32_t>(half(static_cast<uint32_t>(bits >> 32))) << 16;
  }
}

// A thread makes a block of Q8_0: a scale in f16, then 32 codes.
__global__ void __launch_bounds__(kThreads)
    FillQ8BlocksKernel(SyntheticLaw law, float scale, int64_t num_blocks, uint16_t* to) {
  WaitForPreviousKernel();
  constexpr int kWords = 17;
  for (int64_t block = int64_t{blockIdx.x} * kThreads + threadIdx.x; block < num_blocks;
       block += int64_t{gridDim.x} * kThreads) {
    for (int word = 0; word < kWords; ++word) {
      const uint64_t at = static_cast<uint64_t>(block * kWords + word);
      const auto bits =
          static_cast<uint16_t>(MixBits(law.key + at * uint64_t{0x9e3779b97f4a7c15u}) >> 48);
      const float varied = scale * (0.75f + static_cast<float>(bits) * 0x1p-17f);
      to[at] = word == 0 ? __half_as_ushort(__float2half_rn(varied)) : bits;
    }
  }
}

// Root mean squares of a law's values, the sum of four uniforms, and of codes of 4 and 8 bits.
float DeviationOf(const SyntheticLaw& law) { return law.scale * 65536.0f / 1.7320508f; }
constexpr float kCodes4 = 4.6f;
constexpr float kCodes8 = 73.9f;

}  // namespace

void RunFillBlocks(const LaunchContext& context, const SyntheticLaw& law, const MatrixRef& blocks,
                   void* to) {
  CHECK(blocks.format == FormatOf(DType::kQ8_0)) << FormatName(blocks.format);
  Launch(context, FillQ8BlocksKernel, dim3(16 * context.Device().num_sms), dim3(kThreads), 0, law,
         DeviationOf(law) / kCodes8, blocks.bytes().total() / BlockOf(DType::kQ8_0).bytes,
         static_cast<uint16_t*>(to));
}

void RunFillTiles(const LaunchContext& context, const SyntheticLaw& law, const MatrixRef& tiles,
                  void* to) {
  const TileType type = TileTypeOf(tiles);
  const bool is_tile4 = Is4Bit(type);
  const bool f16 = HasF16Scales(type);
  const float scale = DeviationOf(law) / (is_tile4 ? kCodes4 : kCodes8);
  Launch(context, FillTilesKernel, dim3(16 * context.Device().num_sms), dim3(kThreads), 0, law,
         scale, f16, is_tile4 ? 64 : 128, tiles.bytes().total() / 4, static_cast<uint32_t*>(to));
}

void RunFillSynthetic(const LaunchContext& context, const SyntheticLaw& law, int64_t count,
                      bf16* to) {
  Launch(context, FillSyntheticKernel, dim3(16 * context.Device().num_sms), dim3(kThreads), 0, law,
         count, to);
}

}  // namespace lapidary::cuda
