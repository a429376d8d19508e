#include "ops/cpu/quantised_rows.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

namespace lapidary::cpu {
namespace {

constexpr int kRun = 32;

void QuantiseRun(const float* x, int8_t* q, RunFactors* run) {
  float largest = 0.0f;
  bool is_finite = true;
  for (int idx = 0; idx < kRun; ++idx) {
    const float magnitude = std::abs(x[idx]);
    largest = magnitude > largest ? magnitude : largest;
    is_finite &= magnitude <= FLT_MAX;
  }
  const float inverse = largest == 0.0f || !is_finite ? 0.0f : 127.0f / largest;
  // Adding and taking off 1.5 * 2^23 rounds to an integer.
  constexpr float kRounder = 12582912.0f;
  // The inverse of a subnormal is infinite: such a run is 0.
  const float factor = inverse <= FLT_MAX ? inverse : 0.0f;
  int32_t sum[2] = {0, 0};
  for (int half = 0; half < 2; ++half) {
    for (int idx = half * kRun / 2; idx < (half + 1) * kRun / 2; ++idx) {
      const float scaled = is_finite ? x[idx] * factor : 0.0f;
      const auto code = static_cast<int32_t>((scaled + kRounder) - kRounder);
      q[idx] = static_cast<int8_t>(code);
      sum[half] += code;
    }
  }
  run->scale = !is_finite      ? std::numeric_limits<float>::quiet_NaN()
               : factor > 0.0f ? largest / 127.0f
                               : 0.0f;
  run->sum[0] = sum[0];
  run->sum[1] = sum[1];
  run->scaled_sum = run->scale * static_cast<float>(sum[0] + sum[1]);
}

}  // namespace

QuantisedRows RowBuffer::Get(int64_t rows, int64_t in) {
  const int64_t count = rows * in;
  if (count > capacity_) {
    q_ = std::make_unique_for_overwrite<int8_t[]>(count);
    runs_ = std::make_unique_for_overwrite<RunFactors[]>(count / kRun);
    capacity_ = count;
  }
  return {.rows = rows, .in = in, .q = q_.get(), .runs = runs_.get()};
}

void QuantiseRows(const float* x, int64_t begin, int64_t end, const QuantisedRows& out) {
  const int64_t num_runs = out.num_runs();
  for (int64_t run = begin * num_runs; run < end * num_runs; ++run) {
    QuantiseRun(x + run * kRun, out.q + run * kRun, out.runs + run);
  }
}

}  // namespace lapidary::cpu
