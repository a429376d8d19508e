#include "tensor/check_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/float8.h"

namespace lapidary {
namespace {

// Of floats that are neither negative nor NaN the larger one has the larger bits, and of all others
// they are larger still.
template <typename Bits>
uint32_t LargestBits(const void* plane, int64_t count) {
  Bits largest = 0;
  for (int64_t idx = 0; idx < count; ++idx) {
    Bits bits;
    std::memcpy(&bits, static_cast<const std::byte*>(plane) + idx * int64_t{sizeof(Bits)},
                sizeof(bits));
    largest = std::max(largest, bits);
  }
  return largest;
}

uint32_t LargestScaleBits(const MatrixRef& matrix, int64_t count) {
  switch (ScaleBytes(matrix.format.scale)) {
    case 1:
      return LargestBits<uint8_t>(matrix.scales, count);
    case 2:
      return LargestBits<uint16_t>(matrix.scales, count);
    default:
      return LargestBits<uint32_t>(matrix.scales, count);
  }
}

float ValueOf(ScaleType type, uint32_t bits) {
  switch (type) {
    case ScaleType::kF32:
      return std::bit_cast<float>(bits);
    case ScaleType::kF16:
      return F16ToFloat(static_cast<uint16_t>(bits));
    case ScaleType::kBF16:
      return Bf16ToFloat(static_cast<uint16_t>(bits));
    default:
      return Float8ToFloat(static_cast<uint8_t>(bits));
  }
}

bool IsScale(float value) { return std::isfinite(value) && !std::signbit(value); }

uint32_t BitsAt(const MatrixRef& matrix, int64_t idx) {
  const int bytes = ScaleBytes(matrix.format.scale);
  uint32_t bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(matrix.scales) + idx * bytes,
              static_cast<size_t>(bytes));
  return bits;
}

// The largest magnitude of a code less its zero.
float LargestCode(CodeType code) {
  switch (code) {
    case CodeType::kE4M3:
      return kLargestFloat8;
    case CodeType::kE2M1:
      return 6.0f;
    case CodeType::kU4:
      return 15.0f;
    default:
      return 255.0f;
  }
}

BadScale Named(const MatrixRef& matrix, int64_t idx, float value, const char* rule) {
  const ScaleGrid grid = ScaleGridOf(matrix.format, matrix.rows, matrix.cols);
  return {.problem =
              fmt::format("[{}, {}] is {}: {}", idx / grid.cols, idx % grid.cols, value, rule)};
}

// The scale at which weights are infinite.
float ScaleLimit(const MatrixRef& matrix, float factor) {
  return std::numeric_limits<float>::max() / LargestCode(matrix.format.code) / factor;
}

std::optional<BadScale> FindBadTensorScale(const MatrixRef& matrix, float* factor) {
  float value;
  std::memcpy(&value, matrix.tensor_scale, sizeof(value));
  const bool is_divisor = matrix.format.scale == ScaleType::kE4M3OverTensors;
  *factor = is_divisor ? 1.0f / value : value;
  if (IsScale(value) && value > 0.0f && std::isfinite(*factor)) return std::nullopt;
  return BadScale{.is_of_tensor = true,
                  .problem = fmt::format(
                      " is {}: what a whole tensor is scaled by is finite and above zero", value)};
}

}  // namespace

std::optional<BadScale> FindBadScale(const MatrixRef& matrix) {
  CHECK(matrix.format.has_scale_plane()) << FormatName(matrix.format);
  float factor = 1.0f;
  if (matrix.tensor_scale != nullptr) {
    if (auto bad = FindBadTensorScale(matrix, &factor)) return bad;
  }
  const ScaleType type = matrix.format.scale;
  const ScaleGrid grid = ScaleGridOf(matrix.format, matrix.rows, matrix.cols);
  const int64_t count = grid.rows * grid.cols;
  const uint32_t largest = LargestScaleBits(matrix, count);
  if (count > 0 && largest == 0) {
    return BadScale{.problem = " holds nothing but zeros"};
  }
  const float limit = ScaleLimit(matrix, factor);
  const float value = ValueOf(type, largest);
  if (IsScale(value) && value <= limit) return std::nullopt;
  for (int64_t idx = 0; idx < count; ++idx) {
    const float scale = ValueOf(type, BitsAt(matrix, idx));
    if (!IsScale(scale)) {
      return Named(matrix, idx, scale, "a scale is a number, finite and not negative");
    }
    if (scale > limit) return Named(matrix, idx, scale, "weights are infinite by it");
  }
  CHECK(false) << "a bad scale is at its place";
  return std::nullopt;
}

}  // namespace lapidary
