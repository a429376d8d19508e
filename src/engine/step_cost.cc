#include "engine/step_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lapidary {
namespace {

// A step's weight after n more: 0.95^n, so some twenty steps are remembered.
constexpr double kRemembered = 0.95;
// A hiccup of the machine counts as a step so many times as slow as expected. What really became
// slower is learnt all the same, within a few steps.
constexpr double kMostSurprise = 3.0;
constexpr double kLeastMs = 1e-6;

}  // namespace

void StepShape::AddDecode(int32_t rows, int32_t num_cached) {
  num_rows += rows;
  num_decode_keys += static_cast<double>(rows) * num_cached;
}

void StepShape::AddChunk(int32_t rows, int32_t num_cached) {
  num_rows += rows;
  num_chunk_keys += rows * (num_cached + 0.5 * rows);
}

StepShape ShapeOf(const StepBatch& batch) {
  StepShape shape;
  for (const SequenceStep& step : batch.sequences) {
    if (step.num_rows - step.num_drafts > 1) {
      shape.AddChunk(step.num_rows, step.num_cached);
    } else {
      shape.AddDecode(step.num_rows, step.num_cached);
    }
  }
  return shape;
}

StepCost::Terms StepCost::TermsOf(const StepShape& shape) {
  return {1.0, static_cast<double>(shape.num_rows), shape.num_decode_keys, shape.num_chunk_keys};
}

double StepCost::Milliseconds(const StepShape& shape) const {
  const Terms terms = TermsOf(shape);
  double ms = 0.0;
  for (int idx = 0; idx < kNumTerms; ++idx) ms += cost_[idx] * terms[idx];
  return ms;
}

void StepCost::Begin(const Terms& terms, double ms) {
  // One step says nothing about its parts: half of it for the rows, and everything may be wrong.
  // Attention to so many keys costs about as much as the rest of a row: 31B's products are 62
  // GFLOP a row, its full layers 0.65 MFLOP a key; smaller models have fewer.
  constexpr double kKeysPerRow = 30'000.0;
  const double row_ms = ms / terms[1];
  cost_ = {0.5 * ms, 0.5 * row_ms, 0.0, 0.0};
  most_uncertain_ = {ms * ms, row_ms * row_ms, 0.0, 0.0};
  most_uncertain_[2] = most_uncertain_[3] = most_uncertain_[1] / (kKeysPerRow * kKeysPerRow);
  for (int idx = 0; idx < kNumTerms; ++idx) uncertainty_[idx][idx] = most_uncertain_[idx];
  is_known_ = true;
}

void StepCost::Observe(const StepShape& shape, double ms) {
  if (shape.num_rows == 0) return;
  ms = std::max(ms, kLeastMs);
  Terms terms = TermsOf(shape);
  if (!is_known_) return Begin(terms, ms);
  ms = std::min(ms, kMostSurprise * std::max(Milliseconds(shape), kLeastMs));
  for (double& term : terms) term /= ms;  // In these units every step takes 1.

  Terms spread{};  // uncertainty * terms
  double total = kRemembered;
  double expected = 0.0;
  for (int row = 0; row < kNumTerms; ++row) {
    for (int col = 0; col < kNumTerms; ++col) spread[row] += uncertainty_[row][col] * terms[col];
    total += spread[row] * terms[row];
    expected += cost_[row] * terms[row];
  }
  for (int row = 0; row < kNumTerms; ++row) {
    cost_[row] = std::max(0.0, cost_[row] + spread[row] / total * (1.0 - expected));
    for (int col = 0; col < kNumTerms; ++col) {
      uncertainty_[row][col] =
          (uncertainty_[row][col] - spread[row] * spread[col] / total) / kRemembered;
    }
  }
  // What no step tells apart is forgotten without being learnt again: not beyond where it began.
  for (int idx = 0; idx < kNumTerms; ++idx) {
    if (uncertainty_[idx][idx] <= most_uncertain_[idx]) continue;
    const double scale = std::sqrt(most_uncertain_[idx] / uncertainty_[idx][idx]);
    for (int other = 0; other < kNumTerms; ++other) {
      uncertainty_[idx][other] *= scale;
      uncertainty_[other][idx] *= scale;
    }
  }
}

double StepCost::ChunkMilliseconds(int32_t num_rows, int32_t num_cached) const {
  StepShape chunk;
  chunk.AddChunk(num_rows, num_cached);
  return Milliseconds(chunk) - cost_[0];
}

int32_t StepCost::RowsWithin(double ms, int32_t num_cached, int32_t max_rows) const {
  if (ms <= 0.0) return 0;
  // Each row reads what is cached and half of the chunk on average:
  //   rows * (row + key * num_cached) + rows^2 * key / 2 = ms
  const double linear = cost_[1] + cost_[3] * num_cached;
  const double square = 0.5 * cost_[3];
  const double root = std::sqrt(linear * linear + 4.0 * square * ms);
  if (linear + root <= 0.0) return max_rows;
  const double num_rows = 2.0 * ms / (linear + root);  // finite also when square is 0
  return num_rows >= max_rows ? max_rows : static_cast<int32_t>(num_rows);
}

std::string StepCost::ToString() const {
  return fmt::format(
      "{:.3g} ms + {:.3g} us a row + {:.3g} us a thousand keys (decode) + {:.3g} us a thousand "
      "keys (chunk)",
      cost_[0], cost_[1] * 1e3, cost_[2] * 1e6, cost_[3] * 1e6);
}

}  // namespace lapidary
