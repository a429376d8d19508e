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

}  // namespace

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
