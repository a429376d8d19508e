// The block formats against the `gguf` package, bit for bit, and against their own parts.
#include "tensor/block_formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
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
  check(DType::kQ8_0, kPlainAsQ8_0);
}

TEST(BlockFormats, OnlyBlockFormatsHaveBlocks) {
  const std::byte bytes[256] = {};
  EXPECT_DEATH(UnpackBlock(DType::kBF16, bytes), "BF16 has no blocks");
  float out[256];
  EXPECT_DEATH(Dequantise(DType::kQ4_K, bytes, 128, out), "Q4_K");
}

}  // namespace
}  // namespace lapidary
