// Products of rounded activations: against exact sums, and the same bits on every machine.
#include "ops/cpu/linear_panels.h"

#include <gtest/gtest.h>

#include "ops/cpu/elementwise.h"
#include "ops/cpu/linear.h"
#include "ops/cpu/quantised_rows.h"
#include "ops/cpu/random_blocks.h"
#include "tensor/panels.h"

namespace lapidary::cpu {
namespace {

struct Panels {
  std::vector<std::byte> bytes;
  MatrixRef matrix;

  explicit Panels(const MatrixRef& w) {
    const DType dtype = PanelDType(w.format.unit);
    bytes.resize(DTypeBytes(dtype, int64_t{w.rows} * w.cols));
    RepackPanels(w, 0, w.rows, bytes.data());
    matrix = {.data = bytes.data(), .format = FormatOf(dtype), .rows = w.rows, .cols = w.cols};
  }
};

// What the rows of x are after rounding.
std::vector<float> Rounded(const std::vector<float>& x, int64_t rows, int64_t in) {
  RowBuffer buffer;
  const QuantisedRows quantised = buffer.Get(rows, in);
  QuantiseRows(x.data(), 0, rows, quantised);
  std::vector<float> rounded(x.size());
  for (size_t idx = 0; idx < x.size(); ++idx) {
    rounded[idx] = static_cast<float>(quantised.q[idx]) * quantised.runs[idx / 32].scale;
  }
  return rounded;
}

TEST(QuantiseRows, RoundsEachRunToItsLargestMagnitude) {
  Random random(60);
  std::vector<float> x = random.Vector(3 * 64);
  std::fill_n(x.begin() + 64, 32, 0.0f);
  std::fill_n(x.begin() + 96, 32, 0.0f);
  x[100] = 1e-42f;  // the only value of its run that is not 0: too small to be inverted
  const std::vector<float> rounded = Rounded(x, 3, 64);
  for (size_t run = 0; run < x.size() / 32; ++run) {
    float largest = 0.0f;
    for (size_t idx = run * 32; idx < run * 32 + 32; ++idx) {
      largest = std::max(largest, std::abs(x[idx]));
    }
    for (size_t idx = run * 32; idx < run * 32 + 32; ++idx) {
      EXPECT_NEAR(rounded[idx], x[idx], largest / 253.0f + 1e-30f) << idx;
    }
  }
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    x[5] = bad;
    EXPECT_TRUE(std::isnan(Rounded(x, 3, 64)[0]));
  }
}

TEST(GatedLinearPanels, AreTwoProductsAndGeluBitForBit) {
  Random random(64);
  ThreadPool threads(3);
  constexpr int kWidth = 208, kIn = 256, kMaxRows = 515;
  for (const auto& [gate_type, up_type] :
       {std::pair{DType::kQ4_0, DType::kQ4_0}, {DType::kQ4_K, DType::kQ6_K}}) {
    const RandomBlocks gate_blocks(gate_type, kWidth, kIn, random);
    const RandomBlocks up_blocks(up_type, kWidth, kIn, random);
    const Panels gate(gate_blocks.matrix);
    const Panels up(up_blocks.matrix);
    const std::vector<float> x = random.Vector(int64_t{kMaxRows} * kIn);
    for (const int rows : {1, 7, kMaxRows}) {
      std::vector<float> want(int64_t{rows} * kWidth);
      std::vector<float> ups(want.size());
      LinearPanels(x.data(), rows, gate.matrix, want.data(), kWidth, threads);
      LinearPanels(x.data(), rows, up.matrix, ups.data(), kWidth, threads);
      for (int row = 0; row < rows; ++row) {
        GeluMul(want.data() + row * kWidth, ups.data() + row * kWidth, kWidth);
      }
      std::vector<float> got(want.size());
      std::vector<float> scratch(want.size());
      GatedLinearPanels(x.data(), rows, gate.matrix, up.matrix, got.data(), scratch.data(),
                        threads);
      EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0)
          << rows << " rows of " << DTypeName(gate_type);
    }
  }
}

TEST(GatherRow, ReadsPanels) {
  Random random(63);
  for (const DType dtype : kBlockTypes) {
    const int rows = 32, cols = 256;
    const RandomBlocks blocks(dtype, rows, cols, random);
    const Panels panels(blocks.matrix);
    std::vector<float> got(cols);
    for (int row = 0; row < rows; ++row) {
      GatherRow(panels.matrix, row, 1.0f, got.data());
      for (int idx = 0; idx < cols; ++idx) {
        // Scales, and offsets, that are a half times an integer are rounded to 11 bits.
        const float want = blocks.values[row * cols + idx];
        const UnpackedBlock block = UnpackBlock(
            dtype, blocks.matrix.As<std::byte>() + row * blocks.matrix.row_bytes() +
                       DTypeBytes(dtype, idx / BlockOf(dtype).elements * BlockOf(dtype).elements));
        const int in_block = idx % BlockOf(dtype).elements;
        const int run = in_block / (BlockOf(dtype).elements / block.num_runs);
        const float parts = std::abs(block.scale[run] * static_cast<float>(block.q[in_block])) +
                            std::abs(block.offset[run]);
        ASSERT_NEAR(got[idx], want, parts * 0x1p-11f + 0x1p-18f) << DTypeName(dtype);
        if (BlockOf(dtype).elements == 32) {
          ASSERT_EQ(got[idx], want) << DTypeName(dtype);
        }
      }
    }
  }
}

// Scales of some formats are rounded to halves, and nothing else is lost.
TEST(LinearPanels, AreTheProductsOfRoundedRows) {
  Random random(61);
  ThreadPool threads(2);
  for (const DType dtype : kBlockTypes) {
    const int out = 48, in = 768, rows = 3;
    const RandomBlocks blocks(dtype, out, in, random);
    const Panels panels(blocks.matrix);
    const std::vector<float> x = random.Vector(rows * in);
    const std::vector<float> rounded = Rounded(x, rows, in);
    Guarded y(rows * out, 1);
    Linear(x.data(), rows, panels.matrix, y.data(), out, threads);
    y.CheckGuards();
    for (int row = 0; row < rows; ++row) {
      for (int col = 0; col < out; ++col) {
        const std::span<const float> xs(rounded.data() + row * in, in);
        const std::span<const float> ws(blocks.values.data() + col * in, in);
        const ExactDot dot(xs, ws);
        EXPECT_NEAR(y[row * out + col], dot.value, dot.magnitude * 0x1p-11)
            << DTypeName(dtype) << " " << row << " " << col;
      }
    }
  }
}

TEST(LinearPanels, GiveTheSameBitsOnEveryMachineAndForAnyNumberOfRows) {
  Random random(62);
  ThreadPool threads(3);
  const std::vector<PanelTarget> targets = PanelTargets();
  ASSERT_EQ(targets.front(), PanelTarget::kPlain);
  for (const DType dtype : kBlockTypes) {
    for (const int in : {256, 1536}) {
      const int out = 80, rows = 53;
      const RandomBlocks blocks(dtype, out, in, random);
      const Panels panels(blocks.matrix);
      const std::vector<float> x = random.Vector(int64_t{rows} * in);
      std::vector<float> expected(rows * out);
      SetPanelTargetForTest(&targets.front());
      for (int row = 0; row < rows; ++row) {
        LinearPanelColumns(x.data() + row * in, 1, panels.matrix, 0, out,
                           expected.data() + row * out, out);
      }
      for (const PanelTarget& target : targets) {
        SCOPED_TRACE(PanelTargetName(target));
        SetPanelTargetForTest(&target);
        for (const int count : {1, 2, 3, 7, 8, 16, 31, rows}) {
          Guarded y(int64_t{count} * out, 1);
          Linear(x.data(), count, panels.matrix, y.data(), out, threads);
          y.CheckGuards();
          ASSERT_EQ(std::memcmp(y.data(), expected.data(), count * out * sizeof(float)), 0)
              << DTypeName(dtype) << ", " << count << " rows of " << in;
          std::fill_n(y.data(), count * out, 0.0f);
          LinearColumns(x.data(), count, panels.matrix, 32, out, y.data(), out);
          for (int row = 0; row < count; ++row) {
            ASSERT_EQ(std::memcmp(y.data() + row * out + 32, expected.data() + row * out + 32,
                                  (out - 32) * sizeof(float)),
                      0);
          }
        }
      }
      SetPanelTargetForTest(nullptr);
    }
  }
}

}  // namespace
}  // namespace lapidary::cpu
