// A linear layer for tests: random inputs, the call on the device, its result in double precision.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/linear/linear.h"
#include "ops/cuda/test_buffer.h"
#include "ops/cuda/tile_type.h"
#include "tensor/block_formats.h"
#include "tensor/repack.h"
#include "tensor/tile_row.h"
#include "tensor/weight_tiles.h"

namespace lapidary::cuda {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t Next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  float Uniform() {
    return static_cast<float>(static_cast<int64_t>(Next() >> 40) - (1 << 23)) / (1 << 23);
  }
  int Below(int limit) { return static_cast<int>((Next() >> 20) % limit); }

 private:
  uint64_t state_;
};

inline std::vector<bf16> RandomBf16(Random& random, size_t size, float amplitude) {
  std::vector<bf16> values(size);
  for (bf16& value : values) value = __float2bfloat16(random.Uniform() * amplitude);
  return values;
}

inline std::vector<float> RandomF32(Random& random, size_t size, float amplitude,
                                    float centre = 0.0f) {
  std::vector<float> values(size);
  for (float& value : values) value = centre + random.Uniform() * amplitude;
  return values;
}

inline double Gelu(double x) {
  return 0.5 * x *
         (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

enum class ResidualCase { kNone, kNothingToAdd, kFull, kWithoutPreNorm };

struct LinearCase {
  int rows = 1;
  int in_dim = 64;
  int out_dim = 16;
  Epilogue epilogue = Epilogue::kStore;
  ResidualCase residual = ResidualCase::kNone;
  float softcap = 30.0f;
  uint64_t seed = 1;
  DType stored = DType::kBF16;         // of the weight; block formats are tiled for the device
  ScaleType scales = ScaleType::kF16;  // of tiles: f16, or rounded to bf16

  std::string Name() const {
    return fmt::format("{} {} rows {} in {} out {} epilogue {} residual {}", DTypeName(stored),
                       scales == ScaleType::kBF16 ? "bf16 scales" : "", rows, in_dim, out_dim,
                       static_cast<int>(epilogue), static_cast<int>(residual));
  }
};

// A weight: the bytes the device gets, and what they stand for.
struct TestWeight {
  WeightFormat format{};
  std::vector<uint8_t> bytes;
  std::vector<float> values;
};
// The scales of tiles in bf16, cut off.
inline void RoundScales(int rows, int cols, TestWeight& weight) {
  const int unit_bytes = TileUnitBytes(*FindTileType(weight.format));
  constexpr int kScales = kTileRows * kTileCols / kTileGroup;
  for (size_t unit = 0; unit < weight.bytes.size(); unit += unit_bytes) {
    for (int idx = 0; idx < kScales; ++idx) {
      uint8_t* const scale = weight.bytes.data() + unit + unit_bytes - 2 * (kScales - idx);
      uint16_t half = 0;
      std::memcpy(&half, scale, sizeof(half));
      const uint16_t rounded = std::bit_cast<uint32_t>(F16ToFloat(half)) >> 16;
      std::memcpy(scale, &rounded, sizeof(rounded));
    }
  }
  weight.format.scale = ScaleType::kBF16;
  const MatrixRef tiles{
      .data = weight.bytes.data(), .format = weight.format, .rows = rows, .cols = cols};
  for (int row = 0; row < rows; ++row) {
    UnpackTileRow(tiles, row, weight.values.data() + int64_t{row} * cols);
  }
}
inline TestWeight MakeTestWeight(const LinearCase& c, Random& random) {
  const size_t size = size_t(c.out_dim) * c.in_dim;
  const float amplitude = 1.7f / std::sqrt(c.in_dim);
  TestWeight weight;
  if (c.stored == DType::kBF16) {
    const std::vector<bf16> values = RandomBf16(random, size, amplitude);
    weight.bytes.resize(size * sizeof(bf16));
    std::memcpy(weight.bytes.data(), values.data(), weight.bytes.size());
    for (const bf16 value : values) weight.values.push_back(__bfloat162float(value));
    return weight;
  }
  // Any bytes are codes; scales make the weights about as large as above.
  const DTypeBlock block = BlockOf(c.stored);
  std::vector<uint8_t> blocks(DTypeBytes(c.stored, static_cast<int64_t>(size)));
  for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random.Next() >> 32);
  const float largest_code = c.stored == DType::kQ4_0 ? 8.0f : 128.0f;
  for (size_t at = 0; at < blocks.size(); at += block.bytes) {
    const uint16_t scale = FloatToF16(amplitude / largest_code * (1.0f + random.Uniform() / 2));
    std::memcpy(blocks.data() + at, &scale, sizeof(scale));
  }
  weight.values.resize(size);
  Dequantise(c.stored, blocks.data(), static_cast<int64_t>(size), weight.values.data());
  const MatrixRef matrix{
      .data = blocks.data(), .format = FormatOf(c.stored), .rows = c.out_dim, .cols = c.in_dim};
  weight.format = TileFormatFor(matrix.format).value();
  weight.bytes.resize(BytesOf(weight.format, c.out_dim, c.in_dim).total());
  RepackRows(matrix, 0, c.out_dim, weight.format,
             reinterpret_cast<std::byte*>(weight.bytes.data()));
  if (c.scales == ScaleType::kBF16) RoundScales(c.out_dim, c.in_dim, weight);
  return weight;
}

// A call, its inputs on both sides and its outputs on the device.
class LinearProblem {
 public:
  explicit LinearProblem(const LinearCase& c)
      : case_(c),
        random_(c.seed),
        width_(c.epilogue == Epilogue::kGatedGelu ? c.out_dim / 2 : c.out_dim),
        multiplier_stride_(width_ + 24),
        weight_(MakeTestWeight(c, random_)),
        x_(RandomBf16(random_, size_t(c.rows) * c.in_dim, 1.7f)),
        multiplier_(RandomBf16(random_, size_t(c.rows) * multiplier_stride_, 1.0f)),
        hidden_(RandomF32(random_, size_t(c.rows) * c.in_dim, 3.0f)),
        block_out_(RandomBf16(random_, size_t(c.rows) * c.in_dim, 0.3f)),
        post_norm_(RandomF32(random_, c.in_dim, 0.5f, 1.0f)),
        pre_norm_(RandomF32(random_, c.in_dim, 0.5f, 1.0f)),
        device_weight_(weight_.bytes),
        device_x_(x_),
        device_multiplier_(multiplier_),
        device_hidden_(hidden_),
        device_block_out_(block_out_),
        device_post_norm_(post_norm_),
        device_pre_norm_(pre_norm_),
        hidden_out_(hidden_.size()),
        y_bf16_(size_t(c.rows) * width_),
        y_f32_(size_t(c.rows) * width_) {}

  // The first `rows` rows; outputs and rows of x that the call must not see are poisoned first.
  void Run(LinearRunner& runner, const LaunchContext& context, int rows) {
    RunBy(context, rows,
          [&](const LaunchContext& c, const LinearCall& call) { runner.Run(c, call); });
  }
  template <typename Function>
  void RunBy(const LaunchContext& context, int rows, const Function& run) {
    if (case_.residual == ResidualCase::kNone) {
      std::vector<bf16> x = x_;
      std::fill(x.begin() + int64_t{rows} * case_.in_dim, x.end(),
                __float2bfloat16(std::numeric_limits<float>::quiet_NaN()));
      device_x_.Upload(x);
    } else {
      device_x_.Poison();
    }
    hidden_out_.Poison();
    y_bf16_.Poison();
    y_f32_.Poison();
    ResidualUpdate update{.hidden = device_hidden_.get(),
                          .block_out = device_block_out_.get(),
                          .post_norm = device_post_norm_.get(),
                          .scale = 0.75f,
                          .hidden_out = hidden_out_.get(),
                          .pre_norm = device_pre_norm_.get(),
                          .eps = 1e-6f};
    if (case_.residual == ResidualCase::kNothingToAdd) {
      update.block_out = nullptr;
      update.post_norm = nullptr;
      update.scale = 1.0f;
    }
    if (case_.residual == ResidualCase::kWithoutPreNorm) update.pre_norm = nullptr;
    LinearCall call{.weight = {.data = device_weight_.get(),
                               .format = weight_.format,
                               .rows = case_.out_dim,
                               .cols = case_.in_dim},
                    .rows = rows,
                    .x = device_x_.get(),
                    .residual = case_.residual == ResidualCase::kNone ? nullptr : &update,
                    .epilogue = case_.epilogue,
                    .y = F32() ? static_cast<void*>(y_f32_.get()) : y_bf16_.get(),
                    .multiplier = device_multiplier_.get(),
                    .multiplier_stride = multiplier_stride_,
                    .softcap = case_.softcap};
    run(context, call);
    LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(context.stream));
  }

  // Compares `rows` rows with double precision on up to `max_features` features. `rounds_weights`:
  // quantised weights are rounded to bf16 before they are multiplied.
  void Check(int rows, int max_features, bool rounds_weights = true) {
    ASSERT_TRUE(y_bf16_.GuardsIntact() && y_f32_.GuardsIntact() && hidden_out_.GuardsIntact() &&
                device_x_.GuardsIntact());
    const std::vector<float> y = Output();
    for (size_t i = 0; i < size_t(rows) * width_; ++i) {
      ASSERT_TRUE(std::isfinite(y[i])) << "row " << i / width_ << " feature " << i % width_;
    }
    for (size_t i = size_t(rows) * width_; i < y.size(); ++i) {
      ASSERT_TRUE(std::isnan(y[i])) << "written beyond the call's rows";
    }
    std::vector<int> features;
    if (width_ <= max_features) {
      for (int f = 0; f < width_; ++f) features.push_back(f);
    } else {
      features = {0, 1, 7, 8, 15, 16, width_ - 1, width_ - 2, width_ / 2};
      while (features.size() < size_t(max_features)) features.push_back(random_.Below(width_));
    }
    double error = 0, norm = 0, hidden_error = 0, hidden_norm = 0;
    const std::vector<float> hidden_out = hidden_out_.Download();
    std::vector<double> x(case_.in_dim), h(case_.in_dim);
    for (int row = 0; row < rows; ++row) {
      ReferenceInput(row, x, h);
      for (int k = 0; k < case_.in_dim && case_.residual != ResidualCase::kNone; ++k) {
        const double difference = hidden_out[size_t(row) * case_.in_dim + k] - h[k];
        hidden_error += difference * difference;
        hidden_norm += h[k] * h[k];
      }
      double row_error = 0, row_norm = 0;
      for (const int feature : features) {
        const double expected = Reference(row, feature, x);
        const double difference = y[size_t(row) * width_ + feature] - expected;
        row_error += difference * difference;
        row_norm += expected * expected;
      }
      error += row_error;
      norm += row_norm;
    }
    // bf16 results carry a rounding of 2^-9 of the next power of two, so 2^-8 at most; with the
    // residual, x does too where it falls between two values; f32 results of given bf16 inputs are
    // exact to summation error, but for weights that are rounded.
    const bool exact_inputs = case_.residual == ResidualCase::kNone;
    const bool is_quantised = weight_.format != WeightFormat{};
    const double bound = F32() && is_quantised && rounds_weights ? 3e-3
                         : F32()                                 ? (exact_inputs ? 5e-5 : 1e-3)
                         : is_quantised                          ? 6e-3
                         : Streamed(rows)                        ? 4e-3
                                                                 : 5e-3;
    EXPECT_LT(std::sqrt(error / norm), bound);
    if (case_.residual != ResidualCase::kNone) {
      EXPECT_LT(std::sqrt(hidden_error / hidden_norm), 1e-6);
    }
  }

  std::vector<float> Output() {
    if (F32()) return y_f32_.Download();
    std::vector<float> values;
    for (const bf16 value : y_bf16_.Download()) values.push_back(__bfloat162float(value));
    return values;
  }
  std::vector<float> OutputRows(int rows) {
    std::vector<float> values = Output();
    values.resize(size_t(rows) * width_);
    return values;
  }

 private:
  bool F32() const { return case_.epilogue == Epilogue::kSoftcap; }
  static bool Streamed(int rows) { return rows <= 8; }

  void ReferenceInput(int row, std::vector<double>& x, std::vector<double>& h) const {
    const size_t start = size_t(row) * case_.in_dim;
    if (case_.residual == ResidualCase::kNone) {
      for (int k = 0; k < case_.in_dim; ++k) x[k] = __bfloat162float(x_[start + k]);
      return;
    }
    const bool adds = case_.residual != ResidualCase::kNothingToAdd;
    double sum = 0;
    for (int k = 0; k < case_.in_dim; ++k) {
      const double b = __bfloat162float(block_out_[start + k]);
      sum += b * b;
    }
    const double post = 1.0 / std::sqrt(sum / case_.in_dim + 1e-6);
    sum = 0;
    for (int k = 0; k < case_.in_dim; ++k) {
      const double b = __bfloat162float(block_out_[start + k]);
      h[k] = hidden_[start + k];
      if (adds) h[k] = (h[k] + b * post * post_norm_[k]) * 0.75;
      sum += h[k] * h[k];
    }
    const double pre = 1.0 / std::sqrt(sum / case_.in_dim + 1e-6);
    for (int k = 0; k < case_.in_dim; ++k) {
      const double value =
          case_.residual == ResidualCase::kWithoutPreNorm ? h[k] : h[k] * pre * pre_norm_[k];
      x[k] = __bfloat162float(__float2bfloat16(static_cast<float>(value)));
    }
  }

  double Dot(int weight_row, const std::vector<double>& x) const {
    double sum = 0;
    const float* weight = weight_.values.data() + size_t(weight_row) * case_.in_dim;
    for (int k = 0; k < case_.in_dim; ++k) sum += x[k] * weight[k];
    return sum;
  }

  double Reference(int row, int feature, const std::vector<double>& x) const {
    const double product = Dot(feature, x);
    switch (case_.epilogue) {
      case Epilogue::kStore:
        return product;
      case Epilogue::kGatedGelu:
        return Gelu(product) * Dot(width_ + feature, x);
      case Epilogue::kGeluMul:
        return Gelu(product) *
               __bfloat162float(multiplier_[size_t(row) * multiplier_stride_ + feature]);
      case Epilogue::kSoftcap:
        return case_.softcap == 0 ? product : case_.softcap * std::tanh(product / case_.softcap);
    }
    return 0;
  }

  LinearCase case_;
  Random random_;
  int width_;
  int64_t multiplier_stride_;
  TestWeight weight_;
  std::vector<bf16> x_, multiplier_;
  std::vector<float> hidden_;
  std::vector<bf16> block_out_;
  std::vector<float> post_norm_, pre_norm_;
  TestBuffer<uint8_t> device_weight_;
  TestBuffer<bf16> device_x_, device_multiplier_;
  TestBuffer<float> device_hidden_;
  TestBuffer<bf16> device_block_out_;
  TestBuffer<float> device_post_norm_, device_pre_norm_;
  TestBuffer<float> hidden_out_;
  TestBuffer<bf16> y_bf16_;
  TestBuffer<float> y_f32_;
};

constexpr Epilogue kEpilogues[] = {Epilogue::kStore, Epilogue::kGatedGelu, Epilogue::kGeluMul,
                                   Epilogue::kSoftcap};
constexpr ResidualCase kResidualCases[] = {ResidualCase::kNone, ResidualCase::kNothingToAdd,
                                           ResidualCase::kFull, ResidualCase::kWithoutPreNorm};

}  // namespace lapidary::cuda
