#include "ops/cpu/linear.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "ops/cpu/op_testing.h"

namespace lapidary::cpu {
namespace {

constexpr DType kWeightTypes[] = {DType::kBF16, DType::kF16, DType::kF32};

TEST(Linear, MatchesTheExactProductForEveryRemainderOfRowsColumnsAndDepth) {
  ThreadPool threads(1);
  Random random(1);
  constexpr int64_t kMaxRows = 18;
  for (const int64_t in : RemainderDims()) {
    for (const DType dtype : kWeightTypes) {
      const int64_t out = 1 + random.Below(14);
      const int misalign = static_cast<int>(random.Below(4));
      const RandomTensor w({out, in}, dtype, 1.0f, random);
      Guarded x(kMaxRows * in, misalign);
      random.Fill(x.span());
      std::vector<ExactDot> expected;
      for (int64_t row = 0; row < kMaxRows; ++row) {
        for (int64_t col = 0; col < out; ++col) {
          expected.emplace_back(x.span().subspan(row * in, in), w.Row(col));
        }
      }
      ForEachTarget([&] {
        for (int64_t rows = 0; rows <= kMaxRows; ++rows) {
          // Exactly the rows that are needed are readable.
          Guarded used(rows * in, misalign);
          std::copy_n(x.data(), rows * in, used.data());
          const int64_t stride = out + rows % 3;
          Guarded y(rows * stride, misalign);
          Linear(used.data(), rows, w.matrix(), y.data(), stride, threads);
          for (int64_t row = 0; row < rows; ++row) {
            for (int64_t col = 0; col < out; ++col) {
              const ExactDot& exact = expected[row * out + col];
              ASSERT_NEAR(y[row * stride + col], exact.value, exact.Tolerance())
                  << DTypeName(dtype) << " rows " << rows << " in " << in << " out " << out
                  << " at " << row << "," << col;
            }
            for (int64_t col = out; col < stride; ++col) {
              ASSERT_TRUE(std::isnan(y[row * stride + col])) << "write between rows";
            }
          }
          y.CheckGuards();
        }
      });
    }
  }
}

TEST(Linear, ARowIsBitwiseTheSameAloneInAnyBatchAndWithAnyThreads) {
  Random random(2);
  std::vector<std::unique_ptr<ThreadPool>> pools;
  for (const int num_threads : {1, 2, 3, 5}) {
    pools.push_back(std::make_unique<ThreadPool>(num_threads));
  }
  // Deep enough that 40 rows make several blocks of rows.
  for (const int64_t in : {int64_t{7}, int64_t{96}, int64_t{1000}, int64_t{40003}}) {
    const int64_t out = in > 10000 ? 7 : 75;
    constexpr int64_t kMaxRows = 40;
    const std::vector<float> x = random.Vector(kMaxRows * in);
    for (const DType dtype : kWeightTypes) {
      const RandomTensor w({out, in}, dtype, 1.0f, random);
      ForEachTarget([&] {
        std::vector<float> alone(kMaxRows * out);
        for (int64_t row = 0; row < kMaxRows; ++row) {
          Linear(x.data() + row * in, 1, w.matrix(), alone.data() + row * out, out, *pools[0]);
        }
        for (const int64_t rows : {2, 3, 5, 6, 7, 8, 9, 15, 16, 23, 33, 40}) {
          for (const auto& pool : pools) {
            std::vector<float> batch(rows * out);
            Linear(x.data(), rows, w.matrix(), batch.data(), out, *pool);
            ASSERT_EQ(std::memcmp(batch.data(), alone.data(), batch.size() * sizeof(float)), 0)
                << DTypeName(dtype) << " in " << in << " rows " << rows << " threads "
                << pool->num_threads();
          }
        }
      });
    }
  }
}

TEST(LinearColumns, WritesItsColumnsAloneAndEqualsTheWholeProduct) {
  Random random(3);
  ThreadPool threads(1);
  const int64_t in = 37, out = 29, rows = 5;
  const RandomTensor w({out, in}, DType::kBF16, 1.0f, random);
  const std::vector<float> x = random.Vector(rows * in);
  std::vector<float> whole(rows * out);
  Linear(x.data(), rows, w.matrix(), whole.data(), out, threads);
  for (int64_t begin = 0; begin <= out; ++begin) {
    for (int64_t end = begin; end <= out; ++end) {
      Guarded part(rows * out);
      LinearColumns(x.data(), rows, w.matrix(), begin, end, part.data(), out);
      for (int64_t idx = 0; idx < rows * out; ++idx) {
        const bool is_asked = idx % out >= begin && idx % out < end;
        ASSERT_TRUE(is_asked ? part[idx] == whole[idx] : std::isnan(part[idx]))
            << begin << ".." << end << " at " << idx;
      }
    }
  }
}

TEST(Linear, WidensSpecialWeightsExactly) {
  // One-hot rows read single weights: the largest, the smallest, subnormal, negative zero.
  const uint16_t f16[] = {0x7bff, 0x0001, 0x8001, 0x03ff, 0x8000, 0x3c00, 0xfbff, 0x0400};
  const uint16_t bf16[] = {0x7f7f, 0x0080, 0x8080, 0x3f80, 0x8000, 0x0100, 0xff7f, 0x3eaa};
  ThreadPool threads(1);
  ForEachTarget([&] {
    for (int64_t idx = 0; idx < 8; ++idx) {
      std::vector<float> x(8, 0.0f);
      x[idx] = 1.0f;
      float y = 0;
      Linear(x.data(), 1, {.data = f16, .format = FormatOf(DType::kF16), .rows = 1, .cols = 8}, &y,
             1, threads);
      EXPECT_EQ(y, F16ToFloat(f16[idx])) << idx;
      Linear(x.data(), 1, {.data = bf16, .format = FormatOf(DType::kBF16), .rows = 1, .cols = 8},
             &y, 1, threads);
      EXPECT_EQ(y, Bf16ToFloat(bf16[idx])) << idx;
    }
  });
}

}  // namespace
}  // namespace lapidary::cpu
