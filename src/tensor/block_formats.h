// The formats whose elements share scales (IsBlockDType), as GGUF files have them.
//
// All of them cut a row into runs of equal scale: run r of a block is
//
//   w[i] = scale[r] * q[i] + offset[r]
//
// with small integers q. Values are those of the `gguf` package of PyPI, bit for bit: products and
// sums are rounded one by one, and sums with an offset are that (d * sc) * q - (dmin * m).
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace lapidary {

// What the codes of IQ4_NL and IQ4_XS stand for.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

// The 8 scales and 8 minima of 6 bits in the 12 bytes of a Q4_K or Q5_K block.
struct KScales {
  uint8_t scale[8];
  uint8_t min[8];
};
KScales UnpackKScales(const uint8_t* bytes);

// Added to anything, it leaves every bit as it was; 0 would turn -0 into 0.
inline constexpr float kNoOffset = -0.0f;

// A block taken apart: what kernels that unpack by themselves are tested against.
struct UnpackedBlock {
  int num_runs = 0;  // of num_elements / num_runs each
  float scale[16];   // by run
  float offset[16];  // kNoOffset in formats without
  int8_t q[256];     // by element
};
UnpackedBlock UnpackBlock(DType dtype, const std::byte* block);

// out[num_elements]; whole blocks of a block format.
void Dequantise(DType dtype, const void* blocks, int64_t num_elements, float* out);

}  // namespace lapidary
