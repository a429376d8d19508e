#include "tensor/quantise_k.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tensor/dtype.h"

namespace lapidary {
namespace {

constexpr int kRuns = 8;
constexpr int kRun = 32;
constexpr float kMaxCode = 15.0f;
constexpr float kMaxScale = 63.0f;  // of 6 bits

// Adding and taking off 1.5 * 2^23 rounds to nearest, as nearbyint does, in code that vectorises.
float Code(float value, float inverse_scale, float min) {
  constexpr float kRounder = 12582912.0f;
  const float rounded = ((value + min) * inverse_scale + kRounder) - kRounder;
  return std::min(std::max(rounded, 0.0f), kMaxCode);
}

// w = scale * q - min, with min >= 0.
struct Fit {
  float scale = 0.0f;
  float min = 0.0f;
  float squared_error = 0.0f;
};

// Sums in as many parts as a vector has lanes.
constexpr int kLanes = 8;
struct LaneSum {
  float lanes[kLanes] = {};
  float Total() const {
    float total = 0.0f;
    for (const float lane : lanes) total += lane;
    return total;
  }
};

// The best scale and min for the codes that `from` gives.
Fit Refit(const float* values, const Fit& from) {
  const float inverse = 1.0f / from.scale;
  float codes[kRun];
  LaneSum sums_q, sums_qq, sums_v, sums_qv, sums_error;
  for (int begin = 0; begin < kRun; begin += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = values[begin + lane];
      const float code = Code(value, inverse, from.min);
      codes[begin + lane] = code;
      sums_q.lanes[lane] += code;
      sums_qq.lanes[lane] += code * code;
      sums_v.lanes[lane] += value;
      sums_qv.lanes[lane] += code * value;
    }
  }
  const float sum_q = sums_q.Total(), sum_qq = sums_qq.Total();
  const float sum_v = sums_v.Total(), sum_qv = sums_qv.Total();
  const float determinant = kRun * sum_qq - sum_q * sum_q;
  Fit fit = from;
  if (determinant > 0.0f) {
    fit.scale = (kRun * sum_qv - sum_q * sum_v) / determinant;
    fit.min = (sum_q * sum_qv - sum_qq * sum_v) / determinant;
  }
  if (fit.min < 0.0f) {
    fit.min = 0.0f;
    fit.scale = sum_qq > 0.0f ? sum_qv / sum_qq : from.scale;
  }
  if (!(fit.scale > 0.0f)) fit = from;
  for (int begin = 0; begin < kRun; begin += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float error = fit.scale * codes[begin + lane] - fit.min - values[begin + lane];
      sums_error.lanes[lane] += error * error;
    }
  }
  fit.squared_error = sums_error.Total();
  return fit;
}

Fit FitRun(const float* values) {
  const auto [lowest, highest] = std::minmax_element(values, values + kRun);
  const float low = std::min(*lowest, 0.0f);
  const float range = *highest - low;
  if (!(range > 0.0f)) return {0.0f, -low, 0.0f};
  // Ranges a little smaller than the values' own lose the extremes and gain everywhere else.
  constexpr float kSteps[] = {15.0f, 15.5f, 16.0f, 16.5f, 17.0f, 18.0f, 14.5f};
  Fit best;
  for (const float steps : kSteps) {
    Fit fit = Refit(values, {range / steps, -low, 0.0f});
    fit = Refit(values, fit);
    if (steps == kSteps[0] || fit.squared_error < best.squared_error) best = fit;
  }
  return best;
}

uint16_t StoreHalf(float value, uint8_t* to) {
  const uint16_t bits = FloatToF16(value);
  std::memcpy(to, &bits, sizeof(bits));
  return bits;
}

// A run's factor in units of the block's.
int InUnits(float value, float unit) {
  return unit == 0.0f ? 0
                      : static_cast<int>(std::clamp(std::nearbyint(value / unit), 0.0f, kMaxScale));
}

constexpr int kRunsOfQ6 = 16;
constexpr int kRunOfQ6 = 16;

int SixBitCode(float value, float inverse_scale) {
  return static_cast<int>(std::clamp(std::nearbyint(value * inverse_scale), -32.0f, 31.0f));
}

// Of w = scale * q with q in [-32, 31]. The value of the largest magnitude is near -32, where there
// is one code more; larger values count for more.
float ScaleOfSixBits(const float* values) {
  float extreme = 0.0f;
  for (int idx = 0; idx < kRunOfQ6; ++idx) {
    if (std::abs(values[idx]) > std::abs(extreme)) extreme = values[idx];
  }
  if (extreme == 0.0f) return 0.0f;
  float best = 0.0f, best_scale = 0.0f;
  for (int step = -9; step <= 9; ++step) {
    const float inverse = -(32.0f + 0.1f * static_cast<float>(step)) / extreme;
    float sum_vq = 0.0f, sum_qq = 0.0f;
    for (int idx = 0; idx < kRunOfQ6; ++idx) {
      const auto code = static_cast<float>(SixBitCode(values[idx], inverse));
      const float weight = values[idx] * values[idx];
      sum_vq += weight * values[idx] * code;
      sum_qq += weight * code * code;
    }
    // The best scale for these codes takes sum_vq^2 / sum_qq off the error.
    if (sum_qq > 0.0f && sum_vq * sum_vq > best * sum_qq) {
      best = sum_vq * sum_vq / sum_qq;
      best_scale = sum_vq / sum_qq;
    }
  }
  return best_scale;
}

}  // namespace

void QuantiseQ6K(const float* values, uint8_t* block) {
  float scales[kRunsOfQ6];
  float extreme = 0.0f;
  for (int run = 0; run < kRunsOfQ6; ++run) {
    scales[run] = ScaleOfSixBits(values + run * kRunOfQ6);
    if (std::abs(scales[run]) > std::abs(extreme)) extreme = scales[run];
  }
  const float unit = F16ToFloat(StoreHalf(extreme / -128.0f, block + 208));
  std::memset(block, 0, 192);
  for (int run = 0; run < kRunsOfQ6; ++run) {
    const float steps = unit == 0.0f ? 0.0f : std::nearbyint(scales[run] / unit);
    const auto scale = static_cast<int8_t>(std::clamp(steps, -128.0f, 127.0f));
    block[192 + run] = static_cast<uint8_t>(scale);
    const float run_scale = unit * static_cast<float>(scale);
    const float inverse = run_scale == 0.0f ? 0.0f : 1.0f / run_scale;
    for (int idx = 0; idx < kRunOfQ6; ++idx) {
      const int col = run * kRunOfQ6 + idx;
      const int code = SixBitCode(values[col], inverse) + 32;
      // Of 128 columns the quarters' codes lie in the halves low, low, high, high of 64 bytes,
      // their high bits in pairs of 32 bytes (block_values.h).
      const int half = col / 128, quarter = col % 128 / 32, in = col % 32;
      block[half * 64 + quarter % 2 * 32 + in] |=
          static_cast<uint8_t>((code & 15) << quarter / 2 * 4);
      block[128 + half * 32 + in] |= static_cast<uint8_t>(code >> 4 << quarter * 2);
    }
  }
}

void QuantiseQ4K(const float* values, uint8_t* block) {
  Fit fits[kRuns];
  float largest_scale = 0.0f, largest_min = 0.0f;
  for (int run = 0; run < kRuns; ++run) {
    fits[run] = FitRun(values + run * kRun);
    largest_scale = std::max(largest_scale, fits[run].scale);
    largest_min = std::max(largest_min, fits[run].min);
  }
  const float unit = F16ToFloat(StoreHalf(largest_scale / kMaxScale, block));
  const float min_unit = F16ToFloat(StoreHalf(largest_min / kMaxScale, block + 2));
  uint8_t* packed = block + 4;
  uint8_t* codes = block + 16;
  std::memset(packed, 0, 12);
  for (int run = 0; run < kRuns; ++run) {
    const int scale = InUnits(fits[run].scale, unit);
    const int min = InUnits(fits[run].min, min_unit);
    // As UnpackKScales reads them.
    if (run < 4) {
      packed[run] |= static_cast<uint8_t>(scale);
      packed[run + 4] |= static_cast<uint8_t>(min);
    } else {
      packed[run + 4] = static_cast<uint8_t>((scale & 15) | (min & 15) << 4);
      packed[run - 4] |= static_cast<uint8_t>(scale >> 4 << 6);
      packed[run] |= static_cast<uint8_t>(min >> 4 << 6);
    }
    const float run_scale = unit * static_cast<float>(scale);
    const float inverse = run_scale == 0.0f ? 0.0f : 1.0f / run_scale;
    const float run_min = min_unit * static_cast<float>(min);
    // Pairs of runs share 32 bytes: the low halves, then the high ones.
    uint8_t* bytes = codes + run / 2 * kRun;
    for (int idx = 0; idx < kRun; ++idx) {
      const auto code = static_cast<uint8_t>(Code(values[run * kRun + idx], inverse, run_min));
      bytes[idx] = run % 2 == 0 ? code : static_cast<uint8_t>(bytes[idx] | code << 4);
    }
  }
}

}  // namespace lapidary
