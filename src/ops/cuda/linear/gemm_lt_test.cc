#include "ops/cuda/linear/gemm_lt.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "ops/cuda/synthetic.h"
#include "ops/cuda/test_buffer.h"
#include "ops/cuda/test_values.h"

namespace lapidary::cuda {
namespace {

constexpr SyntheticLaw kWeightLaw{.key = 7, .scale = 1e-6f};  // uniform, about 0.03 at most
constexpr SyntheticLaw kInputLaw{.key = 8, .scale = 3e-5f};

double Value(const SyntheticLaw& law, int64_t index) {
  return __bfloat162float(__float2bfloat16(SyntheticValue(law, static_cast<uint64_t>(index))));
}

// y [row, column] in double precision.
double Reference(const GemmShape& shape, int row, int column) {
  double sum = 0.0;
  for (int k = 0; k < shape.in_dim; ++k) {
    sum += Value(kInputLaw, int64_t{row} * shape.in_dim + k) *
           Value(kWeightLaw, int64_t{column} * shape.in_dim + k);
  }
  return sum;
}

class GemmLtTest : public testing::Test {
 protected:
  void SetUp() override { LAPIDARY_SKIP_WITHOUT_GPU(); }

  // Samples of y, its corners among them; what was not written is NaN and fails.
  template <typename T>
  void ExpectProduct(const GemmShape& shape, TestBuffer<T>& y) {
    std::mt19937 random(shape.out_dim + shape.rows);
    std::vector<double> expected, actual;
    for (int sample = 0; sample < 60; ++sample) {
      const int row = sample < 4 ? (sample % 2) * (shape.rows - 1) : random() % shape.rows;
      const int column = sample < 4 ? (sample / 2) * (shape.out_dim - 1) : random() % shape.out_dim;
      T value;
      LAPIDARY_CUDA_CHECK(cudaMemcpy(&value, y.get() + int64_t{row} * shape.out_dim + column,
                                     sizeof(T), cudaMemcpyDeviceToHost));
      expected.push_back(Reference(shape, row, column));
      actual.push_back(static_cast<float>(value));
    }
    double error = 0.0, norm = 0.0;
    for (size_t idx = 0; idx < expected.size(); ++idx) {
      error += std::pow(actual[idx] - expected[idx], 2);
      norm += std::pow(expected[idx], 2);
    }
    EXPECT_LT(std::sqrt(error / norm), sizeof(T) == 2 ? 4e-3 : 1e-4)
        << fmt::format("{} rows, {} inputs, {} outputs", shape.rows, shape.in_dim, shape.out_dim);
  }

  template <typename T>
  void Check(GemmLt& gemm, const GemmShape& shape, int rows, bf16* weight, bf16* x) {
    TestBuffer<T> y(size_t(rows) * shape.out_dim);
    gemm.Run(nullptr, weight, x, y.get(), shape.f32_output, shape.out_dim, shape.in_dim, rows);
    LAPIDARY_CUDA_CHECK(cudaDeviceSynchronize());
    GemmShape run = shape;
    run.rows = rows;
    ExpectProduct(run, y);
  }
};

TEST_F(GemmLtTest, EveryAlgorithmOfTheTableGivesTheProduct) {
  if (cublasLtGetVersion() != GemmTableVersion()) {
    GTEST_SKIP() << "the table is for cuBLASLt " << GemmTableVersion() << ", this is "
                 << cublasLtGetVersion();
  }
  int64_t weight_size = 0, x_size = 0;
  for (const GemmAlgorithm& entry : GemmTable()) {
    weight_size = std::max(weight_size, int64_t{entry.shape.out_dim} * entry.shape.in_dim);
    x_size = std::max(x_size, int64_t{entry.shape.rows} * entry.shape.in_dim);
  }
  TestBuffer<bf16> weight(weight_size), x(x_size);
  RunFillSynthetic(TestContext(), kWeightLaw, weight_size, weight.get());
  RunFillSynthetic(TestContext(), kInputLaw, x_size, x.get());
  GemmLt gemm;
  for (const GemmAlgorithm& entry : GemmTable()) {
    EXPECT_TRUE(gemm.FromTable(entry.shape).has_value());
    // The bucket's lower end too: the algorithm serves it as well.
    int fewest = entry.shape.rows;
    while (fewest > 1 && GemmRowBucket(fewest - 1) == entry.shape.rows) --fewest;
    for (const int rows : {entry.shape.rows, fewest}) {
      if (entry.shape.f32_output) {
        Check<float>(gemm, entry.shape, rows, weight.get(), x.get());
      } else {
        Check<bf16>(gemm, entry.shape, rows, weight.get(), x.get());
      }
    }
  }
}

TEST_F(GemmLtTest, AShapeThatTheTableDoesNotKnowTakesTheHeuristic) {
  const GemmShape shape{.out_dim = 328, .in_dim = 136, .rows = 40};
  ASSERT_EQ(FindGemmAlgorithm(shape), nullptr);
  TestBuffer<bf16> weight(size_t(shape.out_dim) * shape.in_dim);
  TestBuffer<bf16> x(size_t(shape.rows) * shape.in_dim);
  RunFillSynthetic(TestContext(), kWeightLaw, weight.size(), weight.get());
  RunFillSynthetic(TestContext(), kInputLaw, x.size(), x.get());
  GemmLt gemm;
  EXPECT_FALSE(gemm.FromTable(shape).has_value());
  Check<bf16>(gemm, shape, shape.rows, weight.get(), x.get());
}

TEST_F(GemmLtTest, ABatchIsItsProductsOneBehindTheOther) {
  constexpr int kBatch = 3;
  constexpr int kOut = 72;
  constexpr int kIn = 136;
  GemmLt gemm(/*row_step=*/128);
  for (const int rows : {1, 130}) {
    TestBuffer<bf16> weight(size_t{kBatch} * kOut * kIn);
    TestBuffer<bf16> x(size_t{kBatch} * rows * kIn);
    TestBuffer<bf16> y(size_t{kBatch} * rows * kOut);
    RunFillSynthetic(TestContext(), kWeightLaw, weight.size(), weight.get());
    RunFillSynthetic(TestContext(), kInputLaw, x.size(), x.get());
    gemm.Run(nullptr, weight.get(), x.get(), y.get(), /*f32_output=*/false, kOut, kIn, rows,
             kBatch);
    const std::vector<float> all = ToFloat(y.Download());
    for (int idx = 0; idx < kBatch; ++idx) {
      const size_t size = size_t(rows) * kOut;
      TestBuffer<bf16> alone(size);
      gemm.Run(nullptr, weight.get() + idx * kOut * kIn, x.get() + int64_t{idx} * rows * kIn,
               alone.get(), /*f32_output=*/false, kOut, kIn, rows);
      EXPECT_LT(Distance(std::span(all).subspan(idx * size, size), ToFloat(alone.Download())), 4e-3)
          << "product " << idx << " of " << rows << " rows";
    }
    EXPECT_TRUE(y.GuardsIntact());
  }
}

}  // namespace
}  // namespace lapidary::cuda
