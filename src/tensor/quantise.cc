#include "tensor/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/quantise_k.h"

namespace lapidary {
namespace {

constexpr int kBlock = 32;

void StoreHalf(float value, uint8_t* to) {
  const uint16_t bits = FloatToF16(value);
  std::memcpy(to, &bits, sizeof(bits));
}

// The value of the largest magnitude, which the scale makes -kHalf: there is one code more there.
float Extreme(const float* values) {
  float extreme = values[0];
  for (int idx = 1; idx < kBlock; ++idx) {
    if (std::abs(values[idx]) > std::abs(extreme)) extreme = values[idx];
  }
  return extreme;
}

// Codes of 2 * kHalf steps, zero in the middle.
template <int kHalf>
struct SignedCodes {
  explicit SignedCodes(const float* block_values)
      : values(block_values), scale(Extreme(values) / -static_cast<float>(kHalf)) {
    inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  }
  uint8_t operator()(int idx) const {
    const float code = std::trunc(values[idx] * inverse + (static_cast<float>(kHalf) + 0.5f));
    return static_cast<uint8_t>(std::clamp(code, 0.0f, 2.0f * static_cast<float>(kHalf) - 1.0f));
  }
  const float* values;
  float scale;
  float inverse;
};

void QuantiseQ4(const float* values, uint8_t* block) {
  const SignedCodes<8> code(values);
  StoreHalf(code.scale, block);
  for (int idx = 0; idx < kBlock / 2; ++idx) {
    block[2 + idx] = static_cast<uint8_t>(code(idx) | code(idx + kBlock / 2) << 4);
  }
}

void QuantiseQ5(const float* values, uint8_t* block) {
  const SignedCodes<16> code(values);
  StoreHalf(code.scale, block);
  uint32_t fifth_bits = 0;
  for (int idx = 0; idx < kBlock; ++idx) fifth_bits |= uint32_t{code(idx)} >> 4 << idx;
  std::memcpy(block + 2, &fifth_bits, sizeof(fifth_bits));
  for (int idx = 0; idx < kBlock / 2; ++idx) {
    block[6 + idx] = static_cast<uint8_t>((code(idx) & 15) | code(idx + kBlock / 2) << 4);
  }
}

void QuantiseQ8(const float* values, uint8_t* block) {
  float largest = 0.0f;
  for (int idx = 0; idx < kBlock; ++idx) largest = std::max(largest, std::abs(values[idx]));
  const float scale = largest / 127.0f;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  StoreHalf(scale, block);
  for (int idx = 0; idx < kBlock; ++idx) {
    const float rounded = std::clamp(std::round(values[idx] * inverse), -127.0f, 127.0f);
    block[2 + idx] = static_cast<uint8_t>(static_cast<int8_t>(rounded));
  }
}

using QuantiseBlock = void (*)(const float* values, uint8_t* block);
QuantiseBlock BlockFunction(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return QuantiseQ4;
    case DType::kQ5_0:
      return QuantiseQ5;
    case DType::kQ8_0:
      return QuantiseQ8;
    case DType::kQ4_K:
      return QuantiseQ4K;
    case DType::kQ6_K:
      return QuantiseQ6K;
    default:
      return nullptr;
  }
}

}  // namespace

bool CanQuantiseTo(DType dtype) { return BlockFunction(dtype) != nullptr; }

void Quantise(const float* values, int64_t num_elements, DType dtype, void* blocks) {
  const QuantiseBlock quantise = BlockFunction(dtype);
  CHECK(quantise != nullptr) << DTypeName(dtype);
  const DTypeBlock block = BlockOf(dtype);
  CHECK_EQ(num_elements % block.elements, 0);
  auto* next = static_cast<uint8_t*>(blocks);
  for (int64_t begin = 0; begin < num_elements; begin += block.elements) {
    quantise(values + begin, next);
    next += block.bytes;
  }
}

}  // namespace lapidary
