// The choice of experts against a plain reference, over shapes and types.
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "ops/cuda/moe/moe.h"
#include "ops/cuda/test_buffer.h"

namespace lapidary::cuda {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Choice {
  std::vector<int32_t> experts;
  std::vector<double> weights;
};

// Of one row. Softmax over the chosen is softmax over all, renormalised.
Choice Reference(std::vector<float> logits, int top_k, const std::vector<float>& scales) {
  for (float& logit : logits) {
    if (std::isnan(logit)) logit = -kInf;
  }
  Choice choice;
  choice.experts.resize(logits.size());
  std::iota(choice.experts.begin(), choice.experts.end(), 0);
  std::stable_sort(choice.experts.begin(), choice.experts.end(),
                   [&](int a, int b) { return logits[a] > logits[b]; });
  choice.experts.resize(top_k);
  const double best = logits[choice.experts[0]];
  double sum = 0.0;
  for (const int expert : choice.experts) {
    choice.weights.push_back(logits[expert] == best ? 1.0 : std::exp(logits[expert] - best));
    sum += choice.weights.back();
  }
  for (int rank = 0; rank < top_k; ++rank) {
    choice.weights[rank] *= scales[choice.experts[rank]] / sum;
  }
  return choice;
}

// Rows of plain values, of many ties, of one value alone, and with infinities and NaN.
std::vector<float> MakeLogits(int rows, int num_experts, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::uniform_int_distribution<int> place(0, num_experts - 1);
  std::vector<float> logits(size_t(rows) * num_experts);
  for (int row = 0; row < rows; ++row) {
    float* values = logits.data() + size_t(row) * num_experts;
    for (int expert = 0; expert < num_experts; ++expert) {
      const float value = normal(random);
      values[expert] = row % 8 == 1 ? std::round(value / 4) : row % 8 == 2 ? -0.5f : value;
    }
    if (row % 8 == 3) values[place(random)] = kInf;
    if (row % 8 == 4) values[place(random)] = values[place(random)] = kInf;
    if (row % 8 == 5) std::fill_n(values, num_experts - 1, -kInf);
    if (row % 8 == 6) values[place(random)] = values[place(random)] = kNan;
    if (row % 8 == 7) std::fill_n(values, num_experts, kNan);
  }
  return logits;
}

template <typename T>
void ExpectChoices(DType dtype, int rows, int num_experts, int top_k, bool is_scaled) {
  SCOPED_TRACE(testing::Message() << DTypeName(dtype) << ", " << rows << " rows, " << top_k
                                  << " of " << num_experts);
  std::mt19937 random(rows * 1000 + num_experts * 10 + top_k);
  std::vector<T> logits;
  for (const float logit : MakeLogits(rows, num_experts, random)) {
    logits.push_back(static_cast<T>(logit));
  }
  std::vector<float> scales(num_experts, 1.0f);
  if (is_scaled) {
    std::uniform_real_distribution<float> scale(0.5f, 2.0f);
    for (float& value : scales) value = scale(random);
  }
  TestBuffer<T> device_logits(logits);
  TestBuffer<float> device_scales(scales);
  TestBuffer<int32_t> experts(size_t(rows) * top_k);
  TestBuffer<float> weights(size_t(rows) * top_k);
  RunChoose(TestContext(), {.rows = rows,
                            .num_experts = num_experts,
                            .top_k = top_k,
                            .dtype = dtype,
                            .logits = device_logits.get(),
                            .per_expert_scale = is_scaled ? device_scales.get() : nullptr,
                            .experts = experts.get(),
                            .weights = weights.get()});
  const std::vector<int32_t> actual = experts.Download();
  const std::vector<float> actual_weights = weights.Download();
  for (int row = 0; row < rows; ++row) {
    const auto begin = logits.begin() + int64_t{row} * num_experts;
    const Choice expected =
        Reference(std::vector<float>(begin, begin + num_experts), top_k, scales);
    for (int rank = 0; rank < top_k; ++rank) {
      const size_t at = size_t(row) * top_k + rank;
      ASSERT_EQ(actual[at], expected.experts[rank]) << "row " << row << ", rank " << rank;
      ASSERT_NEAR(actual_weights[at], expected.weights[rank], 2e-6) << "row " << row;
    }
  }
  EXPECT_TRUE(experts.GuardsIntact() && weights.GuardsIntact());
}

TEST(MoeChooseTest, IsTheReferencesForAllShapesAndTypes) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  int num_cases = 0;
  for (const int rows : {0, 1, 2, 9, 33, 320, 8192}) {
    for (const int num_experts : {8, 31, 64, 128, 160, 256}) {
      for (const int top_k : {1, 2, 5, 8}) {
        if (rows == 8192 && (num_experts % 128 != 0 || top_k != 8)) continue;
        const bool is_scaled = ++num_cases % 2 == 0;
        ExpectChoices<float>(DType::kF32, rows, num_experts, top_k, is_scaled);
        ExpectChoices<bf16>(DType::kBF16, rows, num_experts, top_k, is_scaled);
        ExpectChoices<__half>(DType::kF16, rows, num_experts, top_k, is_scaled);
      }
    }
  }
  EXPECT_GE(3 * num_cases, 47);
}

}  // namespace
}  // namespace lapidary::cuda
