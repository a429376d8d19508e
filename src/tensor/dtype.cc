#include "tensor/dtype.h"

#include <cmath>

#include "base/check.h"

namespace lapidary {
namespace {

struct DTypeInfo {
  DType dtype;
  const char* name;
  DTypeBlock block;
};

constexpr DTypeInfo kInfos[] = {
    {DType::kF32, "F32", {1, 4}},
    {DType::kF16, "F16", {1, 2}},
    {DType::kBF16, "BF16", {1, 2}},
    {DType::kF64, "F64", {1, 8}},
    {DType::kI64, "I64", {1, 8}},
    {DType::kI32, "I32", {1, 4}},
    {DType::kI16, "I16", {1, 2}},
    {DType::kI8, "I8", {1, 1}},
    {DType::kU8, "U8", {1, 1}},
    {DType::kBool, "BOOL", {1, 1}},
    {DType::kF8E4M3, "F8_E4M3", {1, 1}},
    {DType::kF8E5M2, "F8_E5M2", {1, 1}},
    // block_formats.cc has what the bytes of a block are.
    {DType::kQ4_0, "Q4_0", {32, 18}},
    {DType::kQ4_1, "Q4_1", {32, 20}},
    {DType::kQ5_0, "Q5_0", {32, 22}},
    {DType::kQ5_1, "Q5_1", {32, 24}},
    {DType::kQ8_0, "Q8_0", {32, 34}},
    {DType::kQ4_K, "Q4_K", {256, 144}},
    {DType::kQ5_K, "Q5_K", {256, 176}},
    {DType::kQ6_K, "Q6_K", {256, 210}},
    {DType::kIQ4_NL, "IQ4_NL", {32, 18}},
    {DType::kIQ4_XS, "IQ4_XS", {256, 136}},
    {DType::kPanel4, "PANEL4", {32, 18}},
    {DType::kPanel4Min, "PANEL4_MIN", {32, 20}},
    {DType::kPanel6Min, "PANEL6_MIN", {32, 28}},
    {DType::kPanel6Fine, "PANEL6_FINE", {32, 28}},
    {DType::kPanel8, "PANEL8", {32, 34}},
};

}  // namespace

DTypeBlock BlockOf(DType dtype) { return kInfos[static_cast<int>(dtype)].block; }

int64_t DTypeBytes(DType dtype, int64_t num_elements) {
  const DTypeBlock block = BlockOf(dtype);
  CHECK_EQ(num_elements % block.elements, 0) << DTypeName(dtype);
  return num_elements / block.elements * block.bytes;
}

int DTypeSize(DType dtype) {
  const DTypeBlock block = BlockOf(dtype);
  CHECK_EQ(block.elements, 1) << DTypeName(dtype);
  return block.bytes;
}

const char* DTypeName(DType dtype) { return kInfos[static_cast<int>(dtype)].name; }

std::optional<DType> ParseDType(std::string_view name) {
  for (const DTypeInfo& info : kInfos) {
    if (name == info.name && info.block.elements == 1) return info.dtype;
  }
  return std::nullopt;
}

uint16_t FloatToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00;   // NaN
  if (magnitude >= 0x477ff000u) return sign | 0x7c00;  // rounds to at least 65520: infinity
  if (magnitude < 0x38800000u) {                       // below 2^-14: subnormal, steps of 2^-24
    const float scaled = std::ldexp(std::bit_cast<float>(magnitude), 24);
    return sign | static_cast<uint16_t>(std::nearbyint(scaled));
  }
  const uint32_t rebased = magnitude - (112u << 23);
  return sign | static_cast<uint16_t>((rebased + 0xfff + ((rebased >> 13) & 1)) >> 13);
}

}  // namespace lapidary
