#include "towers/tower_ops.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/elementwise.h"
#include "ops/cpu/linear.h"

namespace lapidary::cpu {
namespace {

void Clamp(std::vector<float>& x, float low, float high) {
  if (std::isinf(low) && std::isinf(high)) return;
  // Not std::clamp: a file may have its bounds the wrong way round, and the reference's upper one
  // wins.
  for (float& value : x) value = std::min(std::max(value, low), high);
}

}  // namespace

std::vector<float> PlainLinear(const std::vector<float>& x, int64_t rows, const MatrixRef& matrix,
                               ThreadPool& threads) {
  CHECK_EQ(static_cast<int64_t>(x.size()), rows * matrix.cols);
  std::vector<float> y(rows * matrix.rows);
  Linear(x.data(), rows, matrix, y.data(), matrix.rows, threads);
  return y;
}

std::vector<float> ClippedLinear(const std::vector<float>& x, int64_t rows,
                                 const ClippedMatrix& matrix, ThreadPool& threads) {
  std::vector<float> clipped = x;
  Clamp(clipped, matrix.input_min, matrix.input_max);
  std::vector<float> y = PlainLinear(clipped, rows, matrix.weight, threads);
  Clamp(y, matrix.output_min, matrix.output_max);
  return y;
}

std::vector<float> NormRows(const std::vector<float>& x, const std::vector<float>& weight,
                            float eps, int64_t dim) {
  std::vector<float> y(x.size());
  const float* weights = weight.empty() ? nullptr : weight.data();
  for (size_t at = 0; at < x.size(); at += dim) RmsNorm(x.data() + at, weights, eps, dim, &y[at]);
  return y;
}

void LayerNorm(float* x, const float* weight, const float* bias, float eps, int64_t dim) {
  double sum = 0.0;
  for (int64_t idx = 0; idx < dim; ++idx) sum += x[idx];
  const double mean = sum / static_cast<double>(dim);
  double squares = 0.0;
  for (int64_t idx = 0; idx < dim; ++idx) squares += (x[idx] - mean) * (x[idx] - mean);
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(dim) + eps);
  for (int64_t idx = 0; idx < dim; ++idx) {
    const auto normed = static_cast<float>((x[idx] - mean) * scale);
    x[idx] = normed * weight[idx] + (bias == nullptr ? 0.0f : bias[idx]);
  }
}

void Silu(std::vector<float>& x) {
  for (float& value : x) value = value / (1.0f + std::exp(-value));
}

}  // namespace lapidary::cpu
