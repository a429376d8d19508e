// Products on AMX: against the chain of operations that linear_tiles.h promises, bit for bit.
#include "ops/cpu/linear_tiles.h"

#include <gtest/gtest.h>

#include "ops/cpu/linear.h"
#include "ops/cpu/op_testing.h"

namespace lapidary::cpu {
namespace {

float Rounded(float value) { return Bf16ToFloat(FloatToBf16(value)); }

float Chain(const float* x, const uint16_t* w, int in) {
  float sum = 0.0f;
  for (int begin = 0; begin < in; begin += 32) {
    float even = 0.0f, odd = 0.0f;
    for (int idx = begin; idx < begin + 32; idx += 2) {
      even = std::fma(Rounded(x[idx]), Bf16ToFloat(w[idx]), even);
      odd = std::fma(Rounded(x[idx + 1]), Bf16ToFloat(w[idx + 1]), odd);
    }
    sum += even + odd;
  }
  return sum;
}

struct Bf16Matrix {
  std::vector<uint16_t> bits;
  MatrixRef matrix;

  Bf16Matrix(int rows, int cols, Random& random) {
    for (const float value : random.Vector(int64_t{rows} * cols)) {
      bits.push_back(FloatToBf16(value));
    }
    matrix = {.data = bits.data(), .format = FormatOf(DType::kBF16), .rows = rows, .cols = cols};
  }
};

TEST(LinearTiles, AreOneChainForEachElementWhateverTheOtherRows) {
  if (!HasTiles()) GTEST_SKIP() << "this processor has no AMX tiles for bf16";
  Random random(70);
  ThreadPool threads(3);
  constexpr int kMaxRows = 530;
  for (const auto& [out, in] : {std::pair{16, 32}, {80, 1536}, {300, 2048}, {7, 96}, {33, 64}}) {
    const Bf16Matrix w(out, in, random);
    const std::vector<float> x = random.Vector(int64_t{kMaxRows} * in);
    std::vector<float> expected;
    for (int row = 0; row < kMaxRows; ++row) {
      for (int col = 0; col < out; ++col) {
        expected.push_back(Chain(x.data() + row * in, w.bits.data() + col * in, in));
      }
    }
    for (const int rows : {1, 2, 7, 16, 17, 31, 32, 33, 53, kMaxRows}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, " << out << " x " << in);
      Guarded y(int64_t{rows} * out, 1);
      Linear(x.data(), rows, w.matrix, y.data(), out, threads, Bf16Math::kTiles);
      y.CheckGuards();
      ASSERT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0);
      const int first = out / 2;
      Guarded part(int64_t{rows} * out, 1);
      LinearColumns(x.data(), rows, w.matrix, first, out, part.data(), out, Bf16Math::kTiles);
      part.CheckGuards();
      for (int idx = 0; idx < rows * out; ++idx) {
        if (idx % out < first) {
          ASSERT_TRUE(std::isnan(part[idx])) << "stray write at " << idx;
        } else {
          ASSERT_EQ(part[idx], expected[idx]) << idx;
        }
      }
    }
  }
}

TEST(LinearTiles, TakeBf16OfWholeStepsAlone) {
  const uint16_t bits[64] = {};
  const auto fits = [&](DType dtype, int cols) {
    return FitsTiles({.data = bits, .format = FormatOf(dtype), .rows = 1, .cols = cols});
  };
  EXPECT_EQ(fits(DType::kBF16, 64), HasTiles());
  EXPECT_FALSE(fits(DType::kBF16, 48));
  EXPECT_FALSE(fits(DType::kF16, 64));
}

}  // namespace
}  // namespace lapidary::cpu
