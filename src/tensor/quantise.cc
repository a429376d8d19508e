#include "tensor/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace lapidary {
namespace {

constexpr int kBlock = 32;

void StoreHalf(float value, uint8_t* to) {
  const uint16_t bits = FloatToF16(value);
  std::memcpy(to, &bits, sizeof(bits));
}

// The scale makes the value of the largest magnitude -8, where there is one code more.
void QuantiseQ4(const float* values, uint8_t* block) {
  float extreme = values[0];
  for (int idx = 1; idx < kBlock; ++idx) {
    if (std::abs(values[idx]) > std::abs(extreme)) extreme = values[idx];
  }
  const float scale = extreme / -8.0f;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  StoreHalf(scale, block);
  const auto code = [&](int idx) {
    return static_cast<uint8_t>(std::clamp(std::trunc(values[idx] * inverse + 8.5f), 0.0f, 15.0f));
  };
  for (int idx = 0; idx < kBlock / 2; ++idx) {
    block[2 + idx] = static_cast<uint8_t>(code(idx) | code(idx + kBlock / 2) << 4);
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

}  // namespace

void Quantise(const float* values, int64_t num_elements, DType dtype, void* blocks) {
  CHECK(CanQuantiseTo(dtype)) << DTypeName(dtype);
  CHECK_EQ(num_elements % kBlock, 0);
  auto* next = static_cast<uint8_t*>(blocks);
  for (int64_t begin = 0; begin < num_elements; begin += kBlock) {
    (dtype == DType::kQ4_0 ? QuantiseQ4 : QuantiseQ8)(values + begin, next);
    next += BlockOf(dtype).bytes;
  }
}

}  // namespace lapidary
