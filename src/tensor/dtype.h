// Element types of stored tensors and the conversions between them.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace lapidary {

// Stored one by one, as safetensors has them; in blocks, as GGUF has them (from kQ4_0 on), and
// repacked for products of integers (from kPanel4 on).
enum class DType {
  kF32,
  kF16,
  kBF16,
  kF64,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool,
  kF8E4M3,
  kF8E5M2,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  // In memory only, the rows of a matrix in groups of 16 (tensor/panels.h).
  kPanel4,
  kPanel4Min,
  kPanel6Min,
  kPanel6Fine,
  kPanel8,
};

// Elements come in blocks of so many, which share their scales; a row has whole blocks only.
struct DTypeBlock {
  int elements = 1;
  int bytes = 0;
};
DTypeBlock BlockOf(DType dtype);

// Bytes of so many elements behind each other. They must be whole blocks.
int64_t DTypeBytes(DType dtype, int64_t num_elements);

// Bytes per element, of a type that is stored one by one.
int DTypeSize(DType dtype);

// The safetensors spelling: "BF16"; of block types the GGUF one.
const char* DTypeName(DType dtype);
// By its safetensors spelling: never a block type.
std::optional<DType> ParseDType(std::string_view name);

// Whether elements share scales with the others of a block (block_formats.h).
inline bool IsBlockDType(DType dtype) { return dtype >= DType::kQ4_0 && dtype < DType::kPanel4; }
inline bool IsPanelDType(DType dtype) { return dtype >= DType::kPanel4; }

// The types a weight may have that is stored one by one.
inline bool IsWeightDType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

inline float Bf16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Round to nearest even; NaN stays NaN.
inline uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

constexpr float F16ToFloat(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}
uint16_t FloatToF16(float value);

}  // namespace lapidary
