// The per-layer embedding block against plain arithmetic.
#include "ops/cuda/per_layer_block.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ops/cpu/elementwise.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/test_buffer.h"
#include "ops/cuda/test_values.h"

namespace lapidary::cuda {
namespace {

constexpr int kWidth = 256;
constexpr int kLayers = 3;  // of the per-layer inputs; the block is of the second
constexpr float kEps = 1e-6f;

float Rounded(double value) {
  return __bfloat162float(__float2bfloat16(static_cast<float>(value)));
}

double Gelu(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

// All inputs of a block, on the host and on the device.
struct Inputs {
  int rows;
  int hidden_size;
  std::vector<float> hidden, mlp_norm, ple_norm, next_norm;
  std::vector<bf16> mlp_out, gate, projection, per_layer;

  Inputs(int num_rows, int size, uint32_t seed) : rows(num_rows), hidden_size(size) {
    std::mt19937 random(seed);
    const auto halves = [&](size_t count, float amplitude) {
      std::vector<bf16> values;
      for (const float value : RandomFloats(random, count, amplitude)) {
        values.push_back(__float2bfloat16(value));
      }
      return values;
    };
    const size_t row_values = size_t(rows) * size;
    hidden = RandomFloats(random, row_values, 3.0f);
    mlp_norm = RandomFloats(random, size, 0.5f, 1.0f);
    ple_norm = RandomFloats(random, size, 0.5f, 1.0f);
    next_norm = RandomFloats(random, size, 0.5f, 1.0f);
    mlp_out = halves(row_values, 2.0f);
    gate = halves(size_t(kWidth) * size, 0.05f);
    projection = halves(size_t(kWidth) * size, 0.1f);
    per_layer = halves(size_t(rows) * kLayers * kWidth, 1.0f);
  }

  // A row by itself.
  Inputs Only(int row) const {
    Inputs one = *this;
    const auto keep = [&](auto& values, int64_t width) {
      values.assign(values.begin() + row * width, values.begin() + (row + 1) * width);
    };
    one.rows = 1;
    keep(one.hidden, hidden_size);
    keep(one.mlp_out, hidden_size);
    keep(one.per_layer, kLayers * kWidth);
    return one;
  }
};

struct Outputs {
  std::vector<float> hidden;
  std::vector<bf16> x;
};

constexpr float kMlpScale = 1.25f;
constexpr float kLayerScale = 0.75f;

Outputs RunBlock(const Inputs& inputs) {
  TestBuffer<float> hidden(inputs.hidden), mlp_norm(inputs.mlp_norm), ple_norm(inputs.ple_norm),
      next_norm(inputs.next_norm);
  TestBuffer<bf16> mlp_out(inputs.mlp_out), gate(inputs.gate), projection(inputs.projection),
      per_layer(inputs.per_layer);
  TestBuffer<float> hidden_out(inputs.hidden.size());
  TestBuffer<bf16> x(inputs.hidden.size());
  PerLayerBlockCall call;
  call.rows = inputs.rows;
  call.hidden_size = inputs.hidden_size;
  call.before.hidden = hidden.get();
  call.before.block_out = mlp_out.get();
  call.before.post_norm = mlp_norm.get();
  call.before.scale = kMlpScale;
  call.before.eps = kEps;
  call.gate = Bf16Matrix(gate.get(), kWidth, inputs.hidden_size);
  call.projection = Bf16Matrix(projection.get(), inputs.hidden_size, kWidth);
  call.multiplier = per_layer.get() + kWidth;
  call.multiplier_stride = kLayers * kWidth;
  call.after.post_norm = ple_norm.get();
  call.after.scale = kLayerScale;
  call.after.hidden_out = hidden_out.get();
  call.after.pre_norm = next_norm.get();
  call.after.eps = kEps;
  call.x = x.get();
  RunPerLayerBlock(TestContext(), call);
  LAPIDARY_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(hidden_out.GuardsIntact());
  EXPECT_TRUE(x.GuardsIntact());
  return {hidden_out.Download(), x.Download()};
}

// The same on the host; rounded where the kernel rounds.
void Expect(const Inputs& inputs, int row, std::vector<float>& hidden, std::vector<float>& x) {
  const int size = inputs.hidden_size;
  std::vector<float> h(inputs.hidden.begin() + int64_t{row} * size,
                       inputs.hidden.begin() + int64_t{row + 1} * size);
  const std::vector<float> mlp_out = ToFloat(inputs.Only(row).mlp_out);
  cpu::AddRmsNorm(mlp_out.data(), inputs.mlp_norm.data(), kEps, size, kMlpScale, h.data());
  std::vector<float> gated(kWidth);
  for (int feature = 0; feature < kWidth; ++feature) {
    double sum = 0.0;
    for (int k = 0; k < size; ++k) {
      sum += double{__bfloat162float(inputs.gate[int64_t{feature} * size + k])} * Rounded(h[k]);
    }
    const bf16 multiplier = inputs.per_layer[(int64_t{row} * kLayers + 1) * kWidth + feature];
    gated[feature] = Rounded(Gelu(sum) * __bfloat162float(multiplier));
  }
  std::vector<float> out(size);
  for (int output = 0; output < size; ++output) {
    double sum = 0.0;
    for (int k = 0; k < kWidth; ++k) {
      sum += double{__bfloat162float(inputs.projection[int64_t{output} * kWidth + k])} * gated[k];
    }
    out[output] = Rounded(sum);
  }
  cpu::AddRmsNorm(out.data(), inputs.ple_norm.data(), kEps, size, kLayerScale, h.data());
  hidden = h;
  x.resize(size);
  cpu::RmsNorm(h.data(), inputs.next_norm.data(), kEps, size, x.data());
}

class PerLayerBlockTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    LAPIDARY_SKIP_WITHOUT_GPU();
    ASSERT_TRUE(PerLayerBlockSupports(TestDevice(), GetParam(), kWidth));
  }
};

TEST_P(PerLayerBlockTest, GivesWhatPlainArithmeticGivesForAnyNumberOfRows) {
  for (const int rows : {1, 7, 16, 17, 80, kMaxPerLayerBlockRows}) {
    SCOPED_TRACE(rows);
    const Inputs inputs(rows, GetParam(), 5 + rows);
    const Outputs actual = RunBlock(inputs);
    const std::vector<float> actual_x = ToFloat(actual.x);
    for (int row = 0; row<rows; row += rows> 17 ? 13 : 1) {
      std::vector<float> hidden, x;
      Expect(inputs, row, hidden, x);
      const size_t first = size_t(row) * GetParam();
      EXPECT_LT(Distance(std::span(actual.hidden).subspan(first, GetParam()), hidden), 2e-3);
      EXPECT_LT(Distance(std::span(actual_x).subspan(first, GetParam()), x), 4e-3);
    }
    for (const float value : actual.hidden) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST_P(PerLayerBlockTest, ARowHasTheSameBitsAloneAndAmongOthers) {
  const Inputs inputs(40, GetParam(), 3);
  const Outputs all = RunBlock(inputs);
  for (const int row : {0, 15, 16, 39}) {
    const Outputs alone = RunBlock(inputs.Only(row));
    const size_t first = size_t(row) * GetParam();
    EXPECT_TRUE(SameBits(alone.hidden,
                         {all.hidden.begin() + first, all.hidden.begin() + first + GetParam()}));
    EXPECT_TRUE(SameBits(alone.x, {all.x.begin() + first, all.x.begin() + first + GetParam()}));
  }
}

// E2B, E4B, the smallest.
INSTANTIATE_TEST_SUITE_P(Sizes, PerLayerBlockTest, testing::Values(1536, 2560, 256));

TEST(PerLayerBlockSupportTest, OtherDimensionsAreLeftToOtherKernels) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  EXPECT_FALSE(PerLayerBlockSupports(TestDevice(), 1536, 128));
  EXPECT_FALSE(PerLayerBlockSupports(TestDevice(), 1536 + 16, kWidth));
  EXPECT_FALSE(
      PerLayerBlockSupports(TestDevice(), 3072, kWidth));  // more than the shared memory holds
  EXPECT_FALSE(PerLayerBlockSupports(TestDevice(), 8192, kWidth));
}

}  // namespace
}  // namespace lapidary::cuda
