// The block formats against the `gguf` package, bit for bit, and against their own parts.
#include "tensor/block_formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "tensor/quantise.h"
#include "tensor/tensor_view.h"

namespace lapidary {
namespace {

#include "tensor/block_goldens.inc"

void CheckGolden(DType dtype, std::span<const uint8_t> blocks, std::span<const uint32_t> bits) {
  const DTypeBlock shape = BlockOf(dtype);
  const int64_t num_elements = static_cast<int64_t>(bits.size());
  ASSERT_EQ(static_cast<int64_t>(blocks.size()), DTypeBytes(dtype, num_elements));
  // Blocks lie anywhere in a file: begin at an odd address.
  std::vector<std::byte> shifted(blocks.size() + 1);
  std::copy_n(reinterpret_cast<const std::byte*>(blocks.data()), blocks.size(), shifted.data() + 1);
  const TensorView tensor{
      shifted.data() + 1, dtype, {num_elements / shape.elements, shape.elements}};
  const std::vector<float> values = ToFloats(tensor);
  for (int64_t idx = 0; idx < num_elements; ++idx) {
    ASSERT_EQ(std::bit_cast<uint32_t>(values[idx]), bits[idx])
        << DTypeName(dtype) << " element " << idx << ": " << values[idx] << " instead of "
        << std::bit_cast<float>(bits[idx]);
  }
}

TEST(BlockFormats, AreBitwiseWhatTheGgufPackageMakesOfThem) {
  CheckGolden(DType::kQ4_0, kQ4_0Blocks, kQ4_0Bits);
  CheckGolden(DType::kQ4_1, kQ4_1Blocks, kQ4_1Bits);
  CheckGolden(DType::kQ5_0, kQ5_0Blocks, kQ5_0Bits);
  CheckGolden(DType::kQ5_1, kQ5_1Blocks, kQ5_1Bits);
  CheckGolden(DType::kQ8_0, kQ8_0Blocks, kQ8_0Bits);
  CheckGolden(DType::kQ4_K, kQ4_KBlocks, kQ4_KBits);
  CheckGolden(DType::kQ5_K, kQ5_KBlocks, kQ5_KBits);
  CheckGolden(DType::kQ6_K, kQ6_KBlocks, kQ6_KBits);
  CheckGolden(DType::kIQ4_NL, kIQ4_NLBlocks, kIQ4_NLBits);
  CheckGolden(DType::kIQ4_XS, kIQ4_XSBlocks, kIQ4_XSBits);
}

TEST(Quantise, IsBitwiseWhatTheGgufPackageMakesOfFloats) {
  std::vector<float> values;
  for (const uint32_t bits : kPlainBits) values.push_back(std::bit_cast<float>(bits));
  const int64_t count = static_cast<int64_t>(values.size());
  const auto check = [&](DType dtype, std::span<const uint8_t> expected) {
    std::vector<uint8_t> blocks(DTypeBytes(dtype, count));
    Quantise(values.data(), count, dtype, blocks.data());
    ASSERT_EQ(blocks.size(), expected.size());
    for (size_t idx = 0; idx < blocks.size(); ++idx) {
      ASSERT_EQ(blocks[idx], expected[idx]) << DTypeName(dtype) << " byte " << idx;
    }
  };
  check(DType::kQ4_0, kPlainAsQ4_0);
  check(DType::kQ5_0, kPlainAsQ5_0);
  check(DType::kQ8_0, kPlainAsQ8_0);
}

// Relative to the values, as `convert` reports it.
double ErrorOf(DType dtype, const std::vector<float>& values) {
  const int64_t count = static_cast<int64_t>(values.size());
  std::vector<uint8_t> blocks(DTypeBytes(dtype, count));
  std::vector<float> rounded(values.size());
  Quantise(values.data(), count, dtype, blocks.data());
  Dequantise(dtype, blocks.data(), count, rounded.data());
  double squares = 0.0, errors = 0.0;
  for (int64_t idx = 0; idx < count; ++idx) {
    squares += double{values[idx]} * double{values[idx]};
    errors += std::pow(double{values[idx]} - double{rounded[idx]}, 2);
  }
  return squares == 0.0 ? errors : std::sqrt(errors / squares);
}

TEST(Quantise, ToQ4KLosesLessThanQ4_0) {
  std::mt19937 random(3);
  std::normal_distribution<float> bell(0.0f, 0.02f);
  std::vector<float> values(64 * 256);
  for (float& value : values) value = bell(random);
  EXPECT_LT(ErrorOf(DType::kQ4_K, values), 0.075);
  EXPECT_GT(ErrorOf(DType::kQ4_0, values), 0.085);
  // What codes around an offset of their own are for.
  for (float& value : values) value -= 0.1f;
  EXPECT_LT(ErrorOf(DType::kQ4_K, values), 0.02);
}

TEST(Quantise, ToQ6KLosesAQuarterOfQ4K) {
  std::mt19937 random(4);
  std::normal_distribution<float> bell(0.0f, 0.02f);
  std::vector<float> values(64 * 256);
  for (float& value : values) value = bell(random);
  EXPECT_LT(ErrorOf(DType::kQ6_K, values), 0.018);
  EXPECT_EQ(ErrorOf(DType::kQ6_K, std::vector<float>(256, 0.0f)), 0.0);
  EXPECT_LT(ErrorOf(DType::kQ6_K, std::vector<float>(256, -0.37f)), 1e-3);
  std::vector<float> spike(256, 0.0f);
  spike[77] = 3.0f;
  EXPECT_LT(ErrorOf(DType::kQ6_K, spike), 1e-3);
  // Every code of a block that has them all is its own.
  for (int idx = 0; idx < 256; ++idx) spike[idx] = static_cast<float>(idx % 64 - 32);
  for (int run = 0; run < 16; ++run) spike[run * 16] = -32.0f;
  EXPECT_LT(ErrorOf(DType::kQ6_K, spike), 1e-3);
}

TEST(Quantise, ToQ4KTakesBlocksWithoutRange) {
  EXPECT_EQ(ErrorOf(DType::kQ4_K, std::vector<float>(256, 0.0f)), 0.0);
  EXPECT_LT(ErrorOf(DType::kQ4_K, std::vector<float>(256, -0.37f)), 1e-3);
  EXPECT_LT(ErrorOf(DType::kQ4_K, std::vector<float>(256, 0.37f)), 1e-3);
  std::vector<float> spike(256, 0.0f);
  spike[77] = 3.0f;
  EXPECT_LT(ErrorOf(DType::kQ4_K, spike), 1e-3);
}

TEST(BlockFormats, OnlyBlockFormatsHaveBlocks) {
  const std::byte bytes[256] = {};
  EXPECT_DEATH(UnpackBlock(DType::kBF16, bytes), "BF16 has no blocks");
  float out[256];
  EXPECT_DEATH(Dequantise(DType::kQ4_K, bytes, 128, out), "Q4_K");
}

}  // namespace
}  // namespace lapidary
