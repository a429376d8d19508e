#include "model/synthetic_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string_view>

#include "base/check.h"

namespace lapidary {
namespace {

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
  const float fan_in = spec.shape.empty() ? 1.0f : static_cast<float>(spec.shape.back());
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
    case TensorRole::kOffset:
      return {true, 0.0f, 0.3f};
    case TensorRole::kClipMin:
      return {false, -2.0f, 0.8f};
    case TensorRole::kClipMax:
      return {false, 2.0f, 0.8f};
  }
  CHECK(false) << "unknown role";
  return {};
}

}  // namespace

std::vector<int64_t> SyntheticTokenOrdering(int64_t vocab_size) {
  int64_t stride = vocab_size / 2 + 1;
  while (std::gcd(stride, vocab_size) != 1) ++stride;
  std::vector<int64_t> ordering(vocab_size);
  for (int64_t idx = 0; idx < vocab_size; ++idx) ordering[idx] = idx * stride % vocab_size;
  return ordering;
}

SyntheticLaw MakeSyntheticLaw(const TensorSpec& spec, uint64_t seed) {
  const Law law = LawFor(spec);
  // The sum of four 16-bit uniforms has variance 4 * 2^32 / 12.
  const float scale = law.is_bell ? law.spread * std::sqrt(3.0f) / 65536.0f : law.spread / 32768.0f;
  return {MixBits(seed ^ HashName(spec.name)), law.is_bell, law.centre, scale};
}

void FillSynthetic(const TensorSpec& spec, uint64_t seed, int64_t first, std::span<float> out) {
  const SyntheticLaw law = MakeSyntheticLaw(spec, seed);
  for (size_t idx = 0; idx < out.size(); ++idx) {
    out[idx] = SyntheticValue(law, static_cast<uint64_t>(first) + idx);
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
