#include "model/synthetic_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/check.h"

namespace lapidary {
namespace {

uint64_t Mix(uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t HashName(std::string_view name) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// Either centre + spread * bell (sum of four uniforms, standard deviation 1) or
// centre + spread * uniform(-1, 1).
struct Law {
  bool is_bell;
  float centre;
  float spread;
};

Law LawFor(const TensorSpec& spec) {
  const float fan_in = static_cast<float>(spec.shape.back());
  switch (spec.role) {
    case TensorRole::kMatrix:
      return {true, 0.0f, 1.0f / std::sqrt(fan_in)};
    case TensorRole::kTable:
      return {true, 0.0f, 1.0f / std::sqrt(fan_in)};
    case TensorRole::kRouter:
      return {true, 0.0f, 2.0f};
    case TensorRole::kNorm:
      return {false, 1.2f, 0.8f};
    case TensorRole::kFinalNorm:
      return {false, 10.0f, 6.0f};
    case TensorRole::kQkNorm:
      return {false, 1.4f / std::sqrt(std::sqrt(fan_in)), 0.6f / std::sqrt(std::sqrt(fan_in))};
    case TensorRole::kScale:
      return {false, 0.85f, 0.35f};
  }
  CHECK(false) << "unknown role";
  return {};
}

}  // namespace

void FillSynthetic(const TensorSpec& spec, uint64_t seed, int64_t first, std::span<float> out) {
  const Law law = LawFor(spec);
  const uint64_t key = Mix(seed ^ HashName(spec.name));
  // The sum of four 16-bit uniforms has variance 4 * 2^32 / 12.
  const float bell_scale = law.spread * std::sqrt(3.0f) / 65536.0f;
  const float uniform_scale = law.spread / 32768.0f;
  for (size_t idx = 0; idx < out.size(); ++idx) {
    const uint64_t counter = static_cast<uint64_t>(first) + idx;
    const uint64_t bits = Mix(key + counter * 0x9e3779b97f4a7c15u);
    if (law.is_bell) {
      const int32_t sum = static_cast<int32_t>((bits & 0xffff) + ((bits >> 16) & 0xffff) +
                                               ((bits >> 32) & 0xffff) + (bits >> 48)) -
                          131070;
      out[idx] = static_cast<float>(sum) * bell_scale;
    } else {
      const int32_t centred = static_cast<int32_t>(bits & 0xffff) - 32768;
      out[idx] = law.centre + static_cast<float>(centred) * uniform_scale;
    }
  }
}

void FillSyntheticStored(const TensorSpec& spec, uint64_t seed, int64_t first, DType dtype,
                         std::span<std::byte> out) {
  CHECK(IsWeightDType(dtype));
  constexpr size_t kBlock = 4096;
  float block[kBlock];
  const size_t element_bytes = DTypeSize(dtype);
  const size_t count = out.size() / element_bytes;
  for (size_t done = 0; done < count; done += kBlock) {
    const size_t block_count = std::min(kBlock, count - done);
    FillSynthetic(spec, seed, first + static_cast<int64_t>(done), {block, block_count});
    std::byte* target = out.data() + done * element_bytes;
    if (dtype == DType::kF32) {
      std::memcpy(target, block, block_count * sizeof(float));
      continue;
    }
    for (size_t idx = 0; idx < block_count; ++idx) {
      const uint16_t bits =
          dtype == DType::kBF16 ? FloatToBf16(block[idx]) : FloatToF16(block[idx]);
      std::memcpy(target + 2 * idx, &bits, sizeof(bits));
    }
  }
}

}  // namespace lapidary
