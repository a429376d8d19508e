#include "media/resize.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace lapidary {
namespace {

constexpr double kCubicA = -0.5;

double CubicKernel(double x) {
  x = std::abs(x);
  if (x < 1.0) return ((kCubicA + 2.0) * x - (kCubicA + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * kCubicA;
  return 0.0;
}

// Taps are taken by eights: whole vectors of products of pairs, and no rest.
constexpr int kTapBlock = 8;

// out_i = (sum over taps of weight * in[first + tap]) >> bits, rounded and clamped.
struct AxisFilter {
  struct Output {
    int first = 0;
    int num_taps = 0;
  };
  std::vector<Output> outputs;
  int max_taps = 0;              // a multiple of kTapBlock
  std::vector<int16_t> weights;  // [outputs, max_taps], zero behind an output's taps
  int bits = 0;

  const int16_t* Weights(int output) const { return weights.data() + int64_t{max_taps} * output; }
};

AxisFilter MakeAxisFilter(int in_size, int out_size) {
  const double scale = static_cast<double>(in_size) / out_size;
  const double stretch = std::max(scale, 1.0);
  const double support = 2.0 * stretch;
  AxisFilter filter;
  const int most_taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  filter.max_taps = (most_taps + kTapBlock - 1) / kTapBlock * kTapBlock;
  filter.outputs.resize(out_size);
  std::vector<double> exact(int64_t{out_size} * filter.max_taps);
  double largest = 0.0;
  for (int out_idx = 0; out_idx < out_size; ++out_idx) {
    const double centre = scale * (out_idx + 0.5);
    const int first = std::max(static_cast<int>(centre - support + 0.5), 0);
    const int end = std::min(static_cast<int>(centre + support + 0.5), in_size);
    const int num_taps = std::min(end - first, most_taps);
    double* row = exact.data() + int64_t{filter.max_taps} * out_idx;
    double sum = 0.0;
    for (int tap = 0; tap < num_taps; ++tap) {
      row[tap] = CubicKernel((tap + first - centre + 0.5) * (1.0 / stretch));
      sum += row[tap];
    }
    for (int tap = 0; tap < num_taps; ++tap) {
      row[tap] /= sum;
      largest = std::max(largest, row[tap]);
    }
    filter.outputs[out_idx] = {first, num_taps};
  }
  // As many bits as keep the largest weight within 16.
  for (filter.bits = 0; filter.bits < 22; ++filter.bits) {
    const int next = static_cast<int>(0.5 + largest * (1 << (filter.bits + 1)));
    if (next >= 1 << 15) break;
  }
  filter.weights.resize(exact.size());
  for (size_t idx = 0; idx < exact.size(); ++idx) {
    const double scaled = exact[idx] * (1 << filter.bits);
    filter.weights[idx] =
        static_cast<int16_t>(static_cast<int>(scaled + (scaled < 0 ? -0.5 : 0.5)));
  }
  return filter;
}

uint8_t Round(int sum, int bits) { return static_cast<uint8_t>(std::clamp(sum >> bits, 0, 255)); }

int DotProduct(const int16_t* values, const int16_t* weights, int num_taps) {
  const int end = (num_taps + kTapBlock - 1) / kTapBlock * kTapBlock;
  int sum = 0;
  for (int idx = 0; idx < end; ++idx) sum += values[idx] * weights[idx];
  return sum;
}

// One row: planes [3, plane_len], of which kTapBlock values behind the row are zero; out
// [outputs, 3].
void ResizeRow(const AxisFilter& filter, const int16_t* planes, int64_t plane_len, uint8_t* out) {
  const int half = 1 << (filter.bits - 1);
  for (size_t out_idx = 0; out_idx < filter.outputs.size(); ++out_idx) {
    const auto [first, num_taps] = filter.outputs[out_idx];
    const int16_t* weights = filter.Weights(static_cast<int>(out_idx));
    for (int channel = 0; channel < 3; ++channel) {
      const int16_t* values = planes + channel * plane_len + first;
      out[3 * out_idx + channel] = Round(half + DotProduct(values, weights, num_taps), filter.bits);
    }
  }
}

Image ResizeWidth(const Image& image, int width) {
  const AxisFilter filter = MakeAxisFilter(image.width, width);
  Image resized{image.height, width, std::vector<uint8_t>(size_t{3} * image.height * width)};
  const int64_t plane_len = int64_t{image.width} + kTapBlock;
  std::vector<int16_t> planes(3 * plane_len);
  for (int row = 0; row < image.height; ++row) {
    const uint8_t* in = image.Row(row);
    for (int column = 0; column < image.width; ++column) {
      planes[column] = in[3 * column];
      planes[plane_len + column] = in[3 * column + 1];
      planes[2 * plane_len + column] = in[3 * column + 2];
    }
    ResizeRow(filter, planes.data(), plane_len, resized.Row(row));
  }
  return resized;
}

Image ResizeHeight(const Image& image, int height) {
  const AxisFilter filter = MakeAxisFilter(image.height, height);
  const int row_values = 3 * image.width;
  Image resized{height, image.width, std::vector<uint8_t>(size_t{3} * height * image.width)};
  std::vector<int> sums(row_values);
  for (int out_row = 0; out_row < height; ++out_row) {
    const auto [first, num_taps] = filter.outputs[out_row];
    const int16_t* weights = filter.Weights(out_row);
    std::fill(sums.begin(), sums.end(), 1 << (filter.bits - 1));
    for (int tap = 0; tap < num_taps; ++tap) {
      const uint8_t* in = image.Row(first + tap);
      const int16_t weight = weights[tap];
      for (int idx = 0; idx < row_values; ++idx) sums[idx] += weight * int16_t{in[idx]};
    }
    uint8_t* out = resized.Row(out_row);
    for (int idx = 0; idx < row_values; ++idx) out[idx] = Round(sums[idx], filter.bits);
  }
  return resized;
}

}  // namespace

Image ResizeBicubic(Image image, ImageSize target) {
  CHECK(target.height > 0 && target.width > 0);
  if (target.width != image.width) image = ResizeWidth(image, target.width);
  if (target.height != image.height) image = ResizeHeight(image, target.height);
  return image;
}

}  // namespace lapidary
