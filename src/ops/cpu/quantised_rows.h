// Rows of activations in 8 bits (linear_panels.h).
#pragma once

#include <cstdint>
#include <memory>

namespace lapidary::cpu {

inline constexpr int kQuantisedRun = 32;  // elements of a row with a scale of their own

// Of such a run: x = scale * q.
struct RunFactors {
  float scale;
  float scaled_sum;  // scale * (sum[0] + sum[1])
  int32_t sum[2];    // of q, of the first and the last 16
};

// Views into a RowBuffer.
struct QuantisedRows {
  int64_t rows = 0;
  int64_t in = 0;    // a multiple of kQuantisedRun
  int8_t* q;         // [rows, in], -127..127
  RunFactors* runs;  // [rows, num_runs()]

  int64_t num_runs() const { return in / kQuantisedRun; }
};

// Grown to the largest asked for.
class RowBuffer {
 public:
  QuantisedRows Get(int64_t rows, int64_t in);

 private:
  std::unique_ptr<int8_t[]> q_;
  std::unique_ptr<RunFactors[]> runs_;
  int64_t capacity_ = 0;  // elements
};

// Rows [begin, end) of x [rows, in]. Rounds to nearest, ties to even; a run with an infinity or NaN
// has the scale NaN.
void QuantiseRows(const float* x, int64_t begin, int64_t end, const QuantisedRows& out);

}  // namespace lapidary::cpu
