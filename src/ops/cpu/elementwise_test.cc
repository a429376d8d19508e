#include "ops/cpu/elementwise.h"

#include <gtest/gtest.h>

#include <cstring>

#include "ops/cpu/op_testing.h"
#include "ops/cpu/per_layer_inputs.h"

namespace lapidary::cpu {
namespace {

constexpr int kMisaligns[] = {0, 1, 3};

// Runs body(dim, misalign, random) over every remainder, misalignment and vector target.
template <typename Body>
void ForEachCase(uint32_t seed, const Body& body) {
  ForEachTarget([&] {
    Random random(seed);
    for (const int64_t dim : RemainderDims()) {
      for (const int misalign : kMisaligns) {
        SCOPED_TRACE(testing::Message() << "dim " << dim << " misalign " << misalign);
        body(dim, misalign, random);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

double ExactInverseRms(std::span<const float> x, double eps) {
  double sum = 0;
  for (const float value : x) sum += double{value} * double{value};
  return 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
}

// The sum of squares is off by at most dim roundings, half of that after the root; the division,
// the addition of eps, the root, the reciprocal and the two products add one each.
double NormTolerance(int64_t dim) { return (0.5 * static_cast<double>(dim) + 6) * kUnit; }

TEST(RmsNorm, MatchesTheDefinitionWithAndWithoutWeight) {
  ForEachCase(10, [](int64_t dim, int misalign, Random& random) {
    for (const float eps : {1e-6f, 0.5f}) {
      Guarded x(dim, misalign), w(dim, misalign), y(dim, misalign);
      random.Fill(x.span(), 3.0f);
      random.Fill(w.span(), 20.0f);
      const double inverse = ExactInverseRms(x.span(), eps);
      RmsNorm(x.data(), w.data(), eps, dim, y.data());
      for (int64_t idx = 0; idx < dim; ++idx) {
        const double expected = double{x[idx]} * inverse * double{w[idx]};
        ASSERT_NEAR(y[idx], expected, std::abs(expected) * NormTolerance(dim));
      }
      RmsNorm(x.data(), nullptr, eps, dim, y.data());
      for (int64_t idx = 0; idx < dim; ++idx) {
        const double expected = double{x[idx]} * inverse;
        ASSERT_NEAR(y[idx], expected, std::abs(expected) * NormTolerance(dim));
      }
      y.CheckGuards();
      RmsNorm(x.data(), nullptr, eps, dim, x.data());  // in place
      ASSERT_EQ(std::memcmp(x.data(), y.data(), dim * sizeof(float)), 0);
    }
  });
}

TEST(RmsNorm, OfZeroesIsZero) {
  const std::vector<float> x(20, 0.0f), w(20, 7.0f);
  std::vector<float> y(20, 1.0f);
  RmsNorm(x.data(), w.data(), 1e-6f, 20, y.data());
  for (const float value : y) EXPECT_EQ(value, 0.0f);
}

TEST(AddRmsNorm, AddsTheNormAndThenScales) {
  ForEachCase(11, [](int64_t dim, int misalign, Random& random) {
    Guarded x(dim, misalign), w(dim, misalign), h(dim, misalign);
    random.Fill(x.span());
    random.Fill(w.span());
    random.Fill(h.span(), 5.0f);
    const std::vector<float> before(h.data(), h.data() + dim);
    const double inverse = ExactInverseRms(x.span(), 1e-6);
    const float scale = 0.37f;
    AddRmsNorm(x.data(), w.data(), 1e-6f, dim, scale, h.data());
    for (int64_t idx = 0; idx < dim; ++idx) {
      const double normed = double{x[idx]} * inverse * double{w[idx]};
      const double expected = (before[idx] + normed) * double{scale};
      const double tolerance =
          scale * std::abs(normed) * NormTolerance(dim) + 2 * kUnit * std::abs(expected) * 1.001;
      ASSERT_NEAR(h[idx], expected, tolerance);
    }
    h.CheckGuards();
  });
}

TEST(Scale, MultipliesEachElementOnce) {
  ForEachCase(12, [](int64_t dim, int misalign, Random& random) {
    Guarded x(dim, misalign), y(dim, misalign);
    random.Fill(x.span());
    Scale(x.data(), 1.7f, dim, y.data());
    for (int64_t idx = 0; idx < dim; ++idx) ASSERT_EQ(y[idx], x[idx] * 1.7f);
    y.CheckGuards();
  });
}

TEST(MulAddTo, AddsTheScaledVectorWithOneRoundingOrTwo) {
  ForEachCase(13, [](int64_t dim, int misalign, Random& random) {
    Guarded x(dim, misalign), acc(dim, misalign);
    random.Fill(x.span());
    random.Fill(acc.span());
    const std::vector<float> before(acc.data(), acc.data() + dim);
    MulAddTo(x.data(), -0.3f, dim, acc.data());
    for (int64_t idx = 0; idx < dim; ++idx) {
      const double product = double{x[idx]} * double{-0.3f};
      const double expected = before[idx] + product;
      ASSERT_NEAR(acc[idx], expected, kUnit * (std::abs(product) + std::abs(expected)) * 1.001);
    }
    acc.CheckGuards();
  });
}

double ExactGelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST(GeluMul, MatchesTheTanhGelu) {
  ForEachCase(14, [](int64_t dim, int misalign, Random& random) {
    Guarded gate(dim, misalign), up(dim, misalign);
    random.Fill(gate.span(), 3.0f);
    random.Fill(up.span());
    const std::vector<float> before(gate.data(), gate.data() + dim);
    GeluMul(gate.data(), up.data(), dim);
    for (int64_t idx = 0; idx < dim; ++idx) {
      const double expected = ExactGelu(before[idx]) * double{up[idx]};
      // 1 + tanh carries tanh's four units in the last place, the six roundings of its argument
      // (which move tanh by at most 0.45 of that) and its own; small results are differences.
      const double tolerance = 0.5 * std::abs(double{before[idx]} * double{up[idx]}) * 16 * kUnit +
                               3 * kUnit * std::abs(expected);
      ASSERT_NEAR(gate[idx], expected, tolerance) << before[idx];
    }
    gate.CheckGuards();
  });
}

TEST(GeluMul, StaysFiniteFarOut) {
  ForEachTarget([] {
    for (const float x : {-1e30f, -1e13f, -100.0f, 100.0f, 1e13f, 1e30f}) {
      std::vector<float> gate(9, x);
      const std::vector<float> up(9, 1.0f);
      GeluMul(gate.data(), up.data(), 9);
      for (const float value : gate) EXPECT_EQ(value, x < 0 ? 0.0f : x);
    }
  });
}

TEST(Softcap, MatchesTanhAndKeepsOrderAndBounds) {
  ForEachCase(15, [](int64_t dim, int misalign, Random& random) {
    Guarded x(dim, misalign);
    random.Fill(x.span(), 40.0f);
    const std::vector<float> before(x.data(), x.data() + dim);
    Softcap(x.data(), 30.0f, dim);
    for (int64_t idx = 0; idx < dim; ++idx) {
      const double expected = 30.0 * std::tanh(before[idx] / 30.0);
      // The quotient's two roundings, tanh's four units in the last place, the product's.
      ASSERT_NEAR(x[idx], expected, 12 * kUnit * std::abs(expected)) << before[idx];
      ASSERT_LE(std::abs(x[idx]), 30.0f);
    }
    x.CheckGuards();
  });
}

TEST(ExpMinusMax, MatchesTheDefinitionAndSumsWhatItWrote) {
  ForEachCase(16, [](int64_t dim, int misalign, Random& random) {
    for (const float offset : {0.0f, 1000.0f, -1000.0f}) {
      Guarded x(dim, misalign);
      random.Fill(x.span(), 4.0f);
      for (float& value : x.span()) value += offset;
      const std::vector<float> before(x.data(), x.data() + dim);
      const double max = *std::max_element(before.begin(), before.end());
      const float sum = ExpMinusMax(x.data(), dim);
      double written_sum = 0;
      for (int64_t idx = 0; idx < dim; ++idx) {
        const double expected = std::exp(before[idx] - max);
        // The difference rounds once, and exp turns that into a relative error of its size.
        const double relative = (4 + std::abs(before[idx] - max)) * kUnit;
        ASSERT_NEAR(x[idx], expected, expected * relative);
        written_sum += double{x[idx]};
      }
      ASSERT_NEAR(sum, written_sum, written_sum * static_cast<double>(dim) * kUnit);
      x.CheckGuards();
    }
  });
}

TEST(ExpMinusMax, TakesMinusInfinityAsNothing) {
  ForEachTarget([] {
    std::vector<float> x(11, -std::numeric_limits<float>::infinity());
    x[7] = 3.0f;
    EXPECT_EQ(ExpMinusMax(x.data(), 11), 1.0f);
    for (int idx = 0; idx < 11; ++idx) EXPECT_EQ(x[idx], idx == 7 ? 1.0f : 0.0f);
  });
}

TEST(GatherRow, WidensAndScalesOneRow) {
  ForEachTarget([] {
    Random random(17);
    for (const int64_t dim : RemainderDims()) {
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        const RandomTensor table({4, dim}, dtype, 1.0f, random);
        for (int64_t row = 0; row < 4; ++row) {
          Guarded y(dim, 1);
          GatherRow(table.matrix(), row, 53.0f, y.data());
          for (int64_t idx = 0; idx < dim; ++idx) {
            ASSERT_EQ(y[idx], 53.0f * table.Row(row)[idx]) << DTypeName(dtype);
          }
          y.CheckGuards();
        }
      }
    }
  });
}

// With eps as large as the mean square every factor shows: in a whole model the next norm would
// cancel the 1/sqrt(2), and this one the 1/sqrt(hidden), but for an eps of 1e-6.
TEST(MakePerLayerInputsRow, AppliesEveryFactorOfTheSpecification) {
  Random random(18);
  const int64_t hidden = 1536, width = 24, num_layers = 3;
  const float eps = 0.25f;
  const RandomTensor table({5, num_layers * width}, DType::kBF16, 1.0f, random);
  const std::vector<float> norm = random.Vector(width);
  const std::vector<float> projection = random.Vector(num_layers * width, std::sqrt(1536.0f));
  for (int64_t token = 0; token < 5; ++token) {
    Guarded projected(num_layers * width, 1), inputs(num_layers * width, 1);
    std::copy(projection.begin(), projection.end(), projected.data());
    MakePerLayerInputsRow(table.matrix(), token, norm, eps, hidden, projected.data(),
                          inputs.data());
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      double squares = 0;
      for (int64_t idx = 0; idx < width; ++idx) {
        squares += std::pow(double{projection[layer * width + idx]}, 2) / hidden;
      }
      const double inverse = 1 / std::sqrt(squares / width + eps);  // over the slice, not the row
      for (int64_t idx = 0; idx < width; ++idx) {
        const int64_t at = layer * width + idx;
        const double c =
            projection[at] / std::sqrt(static_cast<double>(hidden)) * inverse * double{norm[idx]};
        const double a = table.Row(token)[at] * std::sqrt(static_cast<double>(width));
        const double expected = (c + a) / std::sqrt(2.0);
        const double tolerance = (std::abs(c) * (NormTolerance(width) + 3 * kUnit) +
                                  std::abs(a) * 2 * kUnit + std::abs(c + a) * 3 * kUnit);
        ASSERT_NEAR(inputs[at], expected, tolerance) << "token " << token << " layer " << layer;
      }
    }
    inputs.CheckGuards();
    projected.CheckGuards();
  }
}

}  // namespace
}  // namespace lapidary::cpu
