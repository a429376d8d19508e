#include "ops/cpu/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "ops/cpu/op_testing.h"

namespace lapidary::cpu {
namespace {

TEST(MakeRouterInput, NormsTheRawResidualAndDividesByTheRootOfTheWidth) {
  Random random(40);
  for (const int64_t dim : RemainderDims()) {
    const float eps = 0.3f;  // large: no factor hides behind the norm
    const std::vector<float> h = random.Vector(dim), scale = random.Vector(dim);
    Guarded out(dim, 1);
    MakeRouterInput(h.data(), scale, eps, out.data());
    double squares = 0;
    for (const float value : h) squares += double{value} * double{value};
    const double n = static_cast<double>(dim);
    const double inverse = 1 / std::sqrt(squares / n + double{eps}) / std::sqrt(n);
    for (int64_t idx = 0; idx < dim; ++idx) {
      const double expected = double{h[idx]} * inverse * double{scale[idx]};
      ASSERT_NEAR(out[idx], expected, std::abs(expected) * (0.5 * n + 9) * kUnit);
    }
    out.CheckGuards();
  }
}

TEST(RouteRow, RenormalisesOverTheChosenOnesAndThenScales) {
  ForEachTarget([] {
    Random random(41);
    for (const int num_experts : {1, 2, 5, 16, 17, 128, 130}) {
      for (const int top_k : {1, 2, 4, 8}) {
        if (top_k > num_experts) continue;
        const std::vector<float> logits = random.Vector(num_experts, 3.0f);
        const std::vector<float> scale = random.Vector(num_experts);
        std::vector<float> scratch = logits;
        std::vector<ExpertChoice> choices(top_k);
        RouteRow(scratch, scale, choices);

        std::vector<int> order(num_experts);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int a, int b) { return logits[a] > logits[b]; });
        double sum = 0;  // of softmax over all experts; its denominator cancels
        for (int rank = 0; rank < top_k; ++rank) sum += std::exp(double{logits[order[rank]]});
        const double spread = logits[order[0]] - logits[order[top_k - 1]];
        for (int rank = 0; rank < top_k; ++rank) {
          ASSERT_EQ(choices[rank].expert, order[rank]);
          const double expected =
              std::exp(double{logits[order[rank]]}) / sum * double{scale[order[rank]]};
          // exp of a rounded difference, twice; the sum; the quotient and the product.
          const double relative = (2 * (4 + spread) + top_k + 2) * kUnit;
          ASSERT_NEAR(choices[rank].weight, expected, std::abs(expected) * relative);
        }
      }
    }
  });
}

TEST(RouteRow, TiesGoToTheLowerExpert) {
  const std::vector<float> ones(40, 1.0f);
  std::vector<float> logits(40, 0.5f);
  logits[33] = 2.0f;
  std::vector<ExpertChoice> choices(4);
  RouteRow(logits, ones, choices);
  EXPECT_EQ(choices[0].expert, 33);
  EXPECT_EQ(choices[1].expert, 0);
  EXPECT_EQ(choices[2].expert, 1);
  EXPECT_EQ(choices[3].expert, 2);
  EXPECT_EQ(choices[1].weight, choices[3].weight);
}

TEST(RouteRow, ChoosesDistinctExpertsEvenWhereProbabilitiesVanish) {
  const std::vector<float> ones(8, 1.0f);
  std::vector<float> logits(8, -1e30f);
  logits[5] = 1e30f;
  std::vector<ExpertChoice> choices(3);
  RouteRow(logits, ones, choices);
  EXPECT_EQ(choices[0].expert, 5);
  EXPECT_EQ(choices[0].weight, 1.0f);
  EXPECT_EQ(choices[1].expert, 0);
  EXPECT_EQ(choices[1].weight, 0.0f);
  EXPECT_EQ(choices[2].expert, 1);
}

TEST(RouteRow, NonFiniteLogitsStayWithinTheExperts) {
  const std::vector<float> ones(8, 1.0f);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (const int num_bad : {1, 8}) {
      std::vector<float> logits(8, 0.0f);
      std::fill_n(logits.begin(), num_bad, bad);
      std::vector<ExpertChoice> choices(8);
      RouteRow(logits, ones, choices);
      for (const ExpertChoice& choice : choices) {
        EXPECT_TRUE(choice.expert >= 0 && choice.expert < 8);
      }
    }
  }
}

struct Sizes {
  int num_experts = 0;
  int top_k = 0;
  int width = 0;
};

struct Experts {
  Sizes sizes;
  int64_t hidden;
  RandomTensor gate_up;
  RandomTensor down;

  Experts(Sizes of, int64_t hidden_size, DType dtype, Random& random)
      : sizes(of),
        hidden(hidden_size),
        gate_up({of.num_experts, 2 * of.width, hidden_size}, dtype,
                1 / std::sqrt(static_cast<float>(hidden_size)), random),
        down({of.num_experts, hidden_size, of.width}, dtype,
             1 / std::sqrt(static_cast<float>(of.width)), random) {}
};

std::vector<ExpertChoice> RandomChoices(const Sizes& sizes, int64_t rows, Random& random) {
  std::vector<ExpertChoice> choices;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int> experts(sizes.num_experts);
    std::iota(experts.begin(), experts.end(), 0);
    for (int rank = 0; rank < sizes.top_k; ++rank) {
      std::swap(experts[rank], experts[rank + random.Below(sizes.num_experts - rank)]);
      choices.push_back({experts[rank], random.Bell()});
    }
  }
  return choices;
}

double ExactGelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

// One row in double, with the error bound carried along; rows of gate come before those of up.
void CheckRow(const Experts& experts, std::span<const float> x,
              std::span<const ExpertChoice> choices, std::span<const float> out) {
  const int64_t width = experts.sizes.width;
  std::vector<double> sum(experts.hidden), error(experts.hidden), magnitude(experts.hidden);
  for (const ExpertChoice& choice : choices) {
    std::vector<double> active(width), active_error(width);
    for (int64_t col = 0; col < width; ++col) {
      const ExactDot gate(x, experts.gate_up.Row(choice.expert * 2 * width + col));
      const ExactDot up(x, experts.gate_up.Row(choice.expert * 2 * width + width + col));
      const double gelu = ExactGelu(gate.value);
      active[col] = gelu * up.value;
      // |gelu'| <= 1.13; the last terms as in the test of GeluMul.
      active_error[col] =
          1.13 * gate.Tolerance() * (std::abs(up.value) + up.Tolerance()) +
          std::abs(gelu) * up.Tolerance() +
          (0.5 * std::abs(gate.value * up.value) * 16 + 3 * std::abs(active[col])) * kUnit;
    }
    for (int64_t dim = 0; dim < experts.hidden; ++dim) {
      const auto w = experts.down.Row(choice.expert * experts.hidden + dim);
      double value = 0, value_error = 0;
      for (int64_t col = 0; col < width; ++col) {
        value += active[col] * double{w[col]};
        value_error +=
            std::abs(double{w[col]}) *
            (active_error[col] + std::abs(active[col]) * static_cast<double>(width + 1) * kUnit);
      }
      sum[dim] += choice.weight * value;
      error[dim] += std::abs(choice.weight) * value_error;
      magnitude[dim] += std::abs(choice.weight * value);
    }
  }
  for (int64_t dim = 0; dim < experts.hidden; ++dim) {
    const double roundings = static_cast<double>(choices.size() + 1) * kUnit * magnitude[dim];
    ASSERT_NEAR(out[dim], sum[dim], 1.001 * (error[dim] + roundings)) << dim;
  }
}

TEST(RunExperts, MatchesTheDefinition) {
  ThreadPool threads(2);
  Random random(42);
  ExpertScratch scratch;  // reused over growing and shrinking sizes
  for (const Sizes sizes :
       {Sizes{4, 2, 48}, Sizes{16, 4, 7}, Sizes{3, 3, 70}, Sizes{5, 1, 1}, Sizes{1, 1, 33}}) {
    for (const int64_t hidden : {1, 6, 33, 80}) {
      const Experts experts(sizes, hidden, hidden % 2 == 0 ? DType::kBF16 : DType::kF16, random);
      for (const int64_t rows : {0, 1, 2, 13}) {
        const auto choices = RandomChoices(sizes, rows, random);
        Guarded x(rows * hidden, 1), out(rows * hidden, 1);
        random.Fill(x.span());
        RunExperts(experts.gate_up.matrix(), experts.down.matrix(), sizes.top_k, x.data(), rows,
                   choices, scratch, out.data(), threads);
        for (int64_t row = 0; row < rows; ++row) {
          ASSERT_NO_FATAL_FAILURE(
              CheckRow(experts, x.span().subspan(row * hidden, hidden),
                       std::span(choices).subspan(row * sizes.top_k, sizes.top_k),
                       out.span().subspan(row * hidden, hidden)))
              << "experts " << sizes.num_experts << " hidden " << hidden << " row " << row;
        }
        out.CheckGuards();
      }
    }
  }
}

TEST(RunExperts, ARowIsBitwiseTheSameAloneInAnyBatchAndWithAnyThreads) {
  Random random(43);
  const Sizes sizes{8, 3, 150};  // wider than one task of columns
  const int64_t hidden = 90, rows = 17;
  const Experts experts(sizes, hidden, DType::kBF16, random);
  const auto choices = RandomChoices(sizes, rows, random);
  const std::vector<float> x = random.Vector(rows * hidden);
  ThreadPool one(1);
  ExpertScratch scratch;
  std::vector<float> alone(rows * hidden);
  for (int64_t row = 0; row < rows; ++row) {
    RunExperts(experts.gate_up.matrix(), experts.down.matrix(), sizes.top_k,
               x.data() + row * hidden, 1,
               std::span(choices).subspan(row * sizes.top_k, sizes.top_k), scratch,
               alone.data() + row * hidden, one);
  }
  for (const int num_threads : {1, 2, 4}) {
    ThreadPool threads(num_threads);
    for (const int64_t batch : {2, 5, 17}) {
      std::vector<float> out(batch * hidden);
      RunExperts(experts.gate_up.matrix(), experts.down.matrix(), sizes.top_k, x.data(), batch,
                 std::span(choices).first(batch * sizes.top_k), scratch, out.data(), threads);
      ASSERT_EQ(std::memcmp(out.data(), alone.data(), out.size() * sizeof(float)), 0)
          << num_threads << " threads, " << batch << " rows";
    }
  }
}

}  // namespace
}  // namespace lapidary::cpu
