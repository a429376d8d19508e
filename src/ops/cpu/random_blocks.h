// Random blocks of any block format, for tests.
#pragma once

#include <cstring>
#include <vector>

#include "ops/cpu/op_testing.h"
#include "tensor/block_formats.h"
#include "tensor/matrix_ref.h"

namespace lapidary::cpu {

inline constexpr DType kBlockTypes[] = {DType::kQ4_0,   DType::kQ4_1,  DType::kQ5_0, DType::kQ5_1,
                                        DType::kQ8_0,   DType::kQ4_K,  DType::kQ5_K, DType::kQ6_K,
                                        DType::kIQ4_NL, DType::kIQ4_XS};

// At an odd address as in a file, and the floats they stand for.
struct RandomBlocks {
  std::vector<uint8_t> bytes;
  MatrixRef matrix;
  std::vector<float> values;

  RandomBlocks(DType dtype, int rows, int cols, Random& random) {
    const DTypeBlock block = BlockOf(dtype);
    const int64_t num_blocks = int64_t{rows} * cols / block.elements;
    bytes.resize(num_blocks * block.bytes + 1);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Below(256));
    // Halves that are scales must be finite and of a size that products stay tame; any code is.
    for (int64_t idx = 0; idx < num_blocks; ++idx) {
      uint8_t* at = bytes.data() + 1 + idx * block.bytes;
      SetHalf(at + (dtype == DType::kQ6_K ? 208 : 0), random);
      if (dtype == DType::kQ4_1 || dtype == DType::kQ5_1 || dtype == DType::kQ4_K ||
          dtype == DType::kQ5_K) {
        SetHalf(at + 2, random);
      }
    }
    matrix = {.data = bytes.data() + 1, .format = FormatOf(dtype), .rows = rows, .cols = cols};
    values.resize(int64_t{rows} * cols);
    Dequantise(dtype, matrix.data, int64_t{rows} * cols, values.data());
  }

  static void SetHalf(uint8_t* at, Random& random) {
    // Now and then subnormal, or zero of either sign.
    const float deviation = random.Below(8) == 0 ? 1e-5f : 0.01f;
    const uint16_t half = random.Below(16) == 0 ? static_cast<uint16_t>(random.Below(2) << 15)
                                                : FloatToF16(random.Bell(deviation));
    std::memcpy(at, &half, sizeof(half));
  }
};

}  // namespace lapidary::cpu
