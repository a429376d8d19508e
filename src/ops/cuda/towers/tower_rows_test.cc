// Rows of towers on the GPU against plain sums in f64.
#include "ops/cuda/towers/tower_rows.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/cuda/test_buffer.h"
#include "ops/cuda/test_values.h"
#include "ops/cuda/towers/padded_head.h"

namespace lapidary::cuda {
namespace {

constexpr double kEps = 1e-6;
constexpr Bounds kTight{-0.7f, 0.9f};

std::vector<bf16> ToBf16(const std::vector<float>& values) {
  std::vector<bf16> rounded;
  for (const float value : values) rounded.push_back(__float2bfloat16_rn(value));
  return rounded;
}

double Clamped(double value, const Bounds& bounds) {
  return std::clamp<double>(value, bounds.low, bounds.high);
}

// Divides by the RMS, then multiplies by `weight` where there is one.
void Norm(std::vector<double>& row, const float* weight) {
  double squares = 0.0;
  for (const double value : row) squares += value * value;
  const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(row.size()) + kEps);
  for (size_t idx = 0; idx < row.size(); ++idx) {
    row[idx] *= inverse * (weight == nullptr ? 1.0 : weight[idx]);
  }
}

// A bf16 is within 2^-8 of the value; sums in f32 may move it a little.
void ExpectRounded(const std::vector<bf16>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t idx = 0; idx < actual.size(); ++idx) {
    ASSERT_NEAR(__bfloat162float(actual[idx]), expected[idx],
                std::abs(expected[idx]) / 256.0 + 1e-5)
        << idx;
  }
}

class PatchHeadsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { LAPIDARY_SKIP_WITHOUT_GPU(); }
};

TEST_P(PatchHeadsTest, QueriesAndKeysAreNormedAndTurnedAndValuesNormed) {
  constexpr int kNumHeads = 3;
  constexpr int kPositions = 7;
  const int dim = GetParam();
  const int quarter = dim / 4;
  for (const int rows : {1, 2, 5, 64}) {
    std::mt19937 random(dim + rows);
    const int64_t stride = kNumHeads * dim + 8;
    const std::vector<float> weights = RandomFloats(random, 2 * dim, 0.5f, 1.0f);
    const std::vector<float> angles = RandomFloats(random, kPositions * quarter, 3.0f);
    std::vector<float2> rope;
    for (const float angle : angles) rope.push_back({std::cos(angle), std::sin(angle)});
    std::vector<GridPlace> places;
    for (int row = 0; row < rows; ++row) places.push_back({row % kPositions, row / 3 % kPositions});
    const std::vector<bf16> projected = ToBf16(RandomFloats(random, 3 * rows * stride, 1.5f));

    TestBuffer<float> weights_on_gpu(weights);
    TestBuffer<float2> rope_on_gpu(rope);
    TestBuffer<GridPlace> places_on_gpu(places);
    TestBuffer<bf16> projected_on_gpu(projected);
    TestBuffer<bf16> heads(size_t{3} * kNumHeads * rows * PaddedHeadDim(dim));
    PatchHeadsCall call;
    call.rows = rows;
    call.num_heads = kNumHeads;
    call.head_dim = dim;
    call.stride = stride;
    for (int part = 0; part < 3; ++part) {
      call.projected[part] = projected_on_gpu.get() + part * rows * stride;
    }
    call.bounds[1] = kTight;
    call.q_norm = weights_on_gpu.get();
    call.k_norm = weights_on_gpu.get() + dim;
    call.rope = rope_on_gpu.get();
    call.places = places_on_gpu.get();
    call.heads = heads.get();
    RunPatchHeads(TestContext(), call);

    std::vector<double> expected(heads.size(), 0.0);
    for (int part = 0; part < 3; ++part) {
      for (int row = 0; row < rows; ++row) {
        for (int head = 0; head < kNumHeads; ++head) {
          const bf16* const from = projected.data() + (part * rows + row) * stride + head * dim;
          std::vector<double> values;
          for (int idx = 0; idx < dim; ++idx) {
            values.push_back(Clamped(__bfloat162float(from[idx]), call.bounds[part]));
          }
          Norm(values, part < 2 ? weights.data() + part * dim : nullptr);
          for (int idx = 0; part < 2 && idx < dim / 2; ++idx) {
            const bool by_column = idx < quarter;
            const int low = by_column ? idx : idx + quarter;
            const float2 by =
                rope[(by_column ? places[row].column : places[row].row) * quarter + idx % quarter];
            const double turned = values[low] * by.x - values[low + quarter] * by.y;
            values[low + quarter] = values[low + quarter] * by.x + values[low] * by.y;
            values[low] = turned;
          }
          const size_t to_row = (size_t(part) * kNumHeads + head) * rows + row;
          for (int idx = 0; idx < dim; ++idx) {
            expected[idx < kHeadRun ? to_row * kHeadRun + idx
                                    : size_t{3} * kNumHeads * rows * kHeadRun + to_row * kHeadTail +
                                          idx - kHeadRun] = values[idx];
          }
        }
      }
    }
    ExpectRounded(heads.Download(), expected);
    EXPECT_TRUE(heads.GuardsIntact());
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, PatchHeadsTest, testing::Values(8, 16, 24, 64, 72, 80));

class UpdateRowsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { LAPIDARY_SKIP_WITHOUT_GPU(); }
};

TEST_P(UpdateRowsTest, RowsAreAddedToNormedAndClamped) {
  const int dim = GetParam();
  constexpr int kNumRows = 9;
  enum { kAdds = 1, kNormsAddend = 2, kHasBias = 4, kNormsHidden = 8, kNormsX = 16 };
  for (const int does : {0, 1, 3, 4, 7, 8, 15, 16, 19, 23, 31}) {
    std::mt19937 random(dim + does);
    const std::vector<float> hidden = RandomFloats(random, kNumRows * dim, 2.0f);
    const std::vector<bf16> addend = ToBf16(RandomFloats(random, kNumRows * dim, 1.5f));
    const std::vector<float> vectors = RandomFloats(random, 4 * dim, 0.5f, 1.0f);
    TestBuffer<float> hidden_on_gpu(hidden);
    TestBuffer<bf16> addend_on_gpu(addend);
    TestBuffer<float> vectors_on_gpu(vectors);
    TestBuffer<bf16> x(size_t{2} * kNumRows * dim);
    const auto vector = [&](int flag, int idx) {
      return (does & flag) != 0 ? vectors_on_gpu.get() + idx * dim : nullptr;
    };
    UpdateRowsCall call;
    call.rows = kNumRows;
    call.dim = dim;
    call.hidden = hidden_on_gpu.get();
    if ((does & kAdds) != 0) call.addend = addend_on_gpu.get();
    call.addend_bounds = kTight;
    call.addend_norm = vector(kNormsAddend, 0);
    call.addend_scale = 0.5f;
    call.bias = vector(kHasBias, 1);
    call.hidden_norm = vector(kNormsHidden, 2);
    call.norms_x = (does & kNormsX) != 0;
    call.x_norm = vector(kNormsX, 3);
    call.x = x.get();
    call.num_x = 2;
    call.x_bounds[1] = kTight;
    RunUpdateRows(TestContext(), call);

    std::vector<double> expected_hidden;
    std::vector<double> expected_x[2];
    for (int row = 0; row < kNumRows; ++row) {
      std::vector<double> added;
      for (int idx = 0; idx < dim; ++idx) {
        added.push_back(Clamped(__bfloat162float(addend[row * dim + idx]), kTight));
      }
      if ((does & kNormsAddend) != 0) Norm(added, vectors.data());
      std::vector<double> values;
      for (int idx = 0; idx < dim; ++idx) {
        values.push_back(hidden[row * dim + idx] +
                         ((does & kHasBias) != 0 ? vectors[dim + idx] : 0.0f) +
                         ((does & kAdds) != 0 ? 0.5 * added[idx] : 0.0));
      }
      if ((does & kNormsHidden) != 0) Norm(values, vectors.data() + 2 * dim);
      expected_hidden.insert(expected_hidden.end(), values.begin(), values.end());
      if ((does & kNormsX) != 0) Norm(values, vectors.data() + 3 * dim);
      for (int copy = 0; copy < 2; ++copy) {
        for (const double value : values) {
          expected_x[copy].push_back(Clamped(value, call.x_bounds[copy]));
        }
      }
    }
    const std::vector<float> actual = hidden_on_gpu.Download();
    for (size_t idx = 0; idx < actual.size(); ++idx) {
      ASSERT_NEAR(actual[idx], expected_hidden[idx], 1e-5) << idx << ", " << does;
    }
    expected_x[0].insert(expected_x[0].end(), expected_x[1].begin(), expected_x[1].end());
    ExpectRounded(x.Download(), expected_x[0]);
    EXPECT_TRUE(hidden_on_gpu.GuardsIntact() && x.GuardsIntact());
  }
}

INSTANTIATE_TEST_SUITE_P(Dims, UpdateRowsTest, testing::Values(8, 48, 768, 1152, 1160, 2048));

}  // namespace
}  // namespace lapidary::cuda
