// Random values for kernel tests, and how far results are from expected ones.
#pragma once

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <span>
#include <vector>

namespace lapidary::cuda {

// Uniform in centre +- amplitude.
inline std::vector<float> RandomFloats(std::mt19937& random, size_t count, float amplitude,
                                       float centre = 0.0f) {
  std::vector<float> values(count);
  std::uniform_real_distribution<float> uniform(-amplitude, amplitude);
  for (float& value : values) value = centre + uniform(random);
  return values;
}

inline std::vector<float> ToFloat(const std::vector<__nv_bfloat16>& values) {
  std::vector<float> floats;
  floats.reserve(values.size());
  for (const __nv_bfloat16 value : values) floats.push_back(__bfloat162float(value));
  return floats;
}

// ||a - b|| / ||b|| over the values of `a`; of `b` there may be more.
inline double Distance(std::span<const float> a, std::span<const float> b) {
  EXPECT_LE(a.size(), b.size());
  double error = 0.0;
  double norm = 0.0;
  for (size_t idx = 0; idx < a.size(); ++idx) {
    error += (a[idx] - b[idx]) * (a[idx] - b[idx]);
    norm += b[idx] * b[idx];
  }
  return std::sqrt(error / norm);
}

}  // namespace lapidary::cuda
