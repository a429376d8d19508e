// What a step costs, learnt from the steps that have run: a sum of four terms, each linear.
//
//   ms = fixed + row * rows + decode_key * keys that decodes read + chunk_key * keys that chunks
//   read
//
// Fitted by recursive least squares on relative errors (a step of 2 ms counts as much as one of
// 200), with old steps slowly forgotten. No clock: whoever ran a step says how long it took.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "executor/step_batch.h"

namespace lapidary {

// What the cost of a step depends on.
struct StepShape {
  int32_t num_rows = 0;
  // Pairs of a row and a cached token before it. Rows of a chunk read a key together, a decode
  // reads it for itself, so the two differ on a GPU.
  double num_decode_keys = 0.0;
  double num_chunk_keys = 0.0;

  // So many rows of one sequence behind `num_cached` tokens.
  void AddDecode(int32_t num_rows, int32_t num_cached);
  void AddChunk(int32_t num_rows, int32_t num_cached);
};

StepShape ShapeOf(const StepBatch& batch);

class StepCost {
 public:
  void Observe(const StepShape& shape, double ms);

  // False until a step was observed; then costs are guesses that the next steps correct.
  bool is_known() const { return is_known_; }
  double Milliseconds(const StepShape& shape) const;
  // What a chunk behind `num_cached` tokens adds to a step.
  double ChunkMilliseconds(int32_t num_rows, int32_t num_cached) const;
  // Most rows of a chunk that add at most `ms`, up to `max_rows`.
  int32_t RowsWithin(double ms, int32_t num_cached, int32_t max_rows) const;

  // "20.1 ms + 11.5 us a row + 0.20 us a thousand keys (decode) + 0.02 us a thousand keys (chunk)"
  std::string ToString() const;

 private:
  static constexpr int kNumTerms = 4;
  using Terms = std::array<double, kNumTerms>;

  static Terms TermsOf(const StepShape& shape);
  void Begin(const Terms& terms, double ms);

  bool is_known_ = false;
  Terms cost_{};                                // ms per unit of each term
  std::array<Terms, kNumTerms> uncertainty_{};  // covariance of cost_
  Terms most_uncertain_{};                      // bounds its diagonal: forgetting lets it grow
};

}  // namespace lapidary
