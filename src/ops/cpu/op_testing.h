// What the tests of the CPU operations share: guarded buffers, sizes, and every vector target.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "tensor/matrix_ref.h"
#include "tensor/tensor_view.h"

namespace lapidary::cpu {

// Half the distance from 1 to the next float: the relative error of one rounding.
inline constexpr double kUnit = 0x1p-24;

// Every remainder of every vector length, and the neighbourhood of the real head dims.
inline std::vector<int64_t> RemainderDims() {
  std::vector<int64_t> dims;
  for (int64_t dim = 1; dim <= 40; ++dim) dims.push_back(dim);
  for (int64_t dim : {255, 256, 257, 511, 512, 513}) dims.push_back(dim);
  return dims;
}

// Floats with NaN on both sides, starting `misalign` floats behind an allocation's start: a stray
// read shows in the result, a stray write in CheckGuards.
class Guarded {
 public:
  explicit Guarded(size_t size, int misalign = 0)
      : storage_(size + 2 * kGuard + misalign, std::numeric_limits<float>::quiet_NaN()),
        begin_(kGuard + misalign),
        size_(size) {}

  float* data() { return storage_.data() + begin_; }
  const float* data() const { return storage_.data() + begin_; }
  size_t size() const { return size_; }
  float& operator[](size_t idx) { return data()[idx]; }
  float operator[](size_t idx) const { return data()[idx]; }
  std::span<float> span() { return {data(), size_}; }
  std::span<const float> span() const { return {data(), size_}; }

  void CheckGuards() const {
    for (size_t idx = 0; idx < storage_.size(); ++idx) {
      const bool is_guard = idx < begin_ || idx >= begin_ + size_;
      ASSERT_TRUE(!is_guard || std::isnan(storage_[idx])) << "stray write at " << idx;
    }
  }

 private:
  static constexpr size_t kGuard = 64;
  std::vector<float> storage_;
  size_t begin_;
  size_t size_;
};

class Random {
 public:
  explicit Random(uint32_t seed) : bits_(seed) {}
  uint32_t Below(uint32_t bound) { return bits_() % bound; }
  // Sum of four uniforms: standard deviation `deviation`, the same on every machine.
  float Bell(float deviation = 1.0f) {
    float sum = 0.0f;
    for (int idx = 0; idx < 4; ++idx) sum += static_cast<float>(bits_() >> 8) * 0x1p-24f - 0.5f;
    return sum * deviation * std::sqrt(3.0f);
  }
  void Fill(std::span<float> values, float deviation = 1.0f) {
    for (float& value : values) value = Bell(deviation);
  }
  std::vector<float> Vector(size_t size, float deviation = 1.0f) {
    std::vector<float> values(size);
    Fill(values, deviation);
    return values;
  }

 private:
  std::mt19937 bits_;
};

// A tensor of random values in a stored type, and the values it really holds. Starts one element
// behind an allocation's start.
class RandomTensor {
 public:
  RandomTensor(std::vector<int64_t> shape, DType dtype, float deviation, Random& random)
      : view_{nullptr, dtype, std::move(shape)} {
    const int64_t count = view_.num_elements();
    const int size = DTypeSize(dtype);
    bytes_.resize((count + 1) * size);
    for (int64_t idx = 0; idx < count; ++idx) {
      const float value = random.Bell(deviation);
      const uint16_t half = dtype == DType::kBF16 ? FloatToBf16(value) : FloatToF16(value);
      std::memcpy(bytes_.data() + (idx + 1) * size,
                  dtype == DType::kF32 ? static_cast<const void*>(&value) : &half, size);
    }
    view_.data = bytes_.data() + size;
    values_ = ToFloats(view_);
  }
  RandomTensor(const RandomTensor&) = delete;

  MatrixRef matrix() const { return MatrixOf(view_); }
  std::span<const float> values() const { return values_; }
  // Row `row` of a matrix, or of the matrices of a stack taken together.
  std::span<const float> Row(int64_t row) const {
    const size_t in = static_cast<size_t>(view_.shape.back());
    return std::span<const float>(values_).subspan(row * in, in);
  }

 private:
  std::vector<std::byte> bytes_;
  TensorView view_;
  std::vector<float> values_;
};

// The exact dot product and the sum of magnitudes that bounds its error in f32.
struct ExactDot {
  double value = 0.0;
  double magnitude = 0.0;
  int64_t terms = 0;

  ExactDot(std::span<const float> a, std::span<const float> b) : terms(a.size()) {
    for (size_t idx = 0; idx < a.size(); ++idx) {
      value += double{a[idx]} * double{b[idx]};
      magnitude += std::abs(double{a[idx]} * double{b[idx]});
    }
  }
  // Any order of summation: at most one rounding per product and per addition on a term's way.
  double Tolerance() const { return static_cast<double>(terms + 1) * kUnit * magnitude; }
};

// Runs `body` once per vector target this machine has, with the operations dispatched to it.
template <typename Body>
void ForEachTarget(const Body& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace lapidary::cpu
