// What a step costs, learnt from the steps that have run: two sums, each linear.
//
//   decodes = fixed + row * rows + key * keys they read
//   chunks  = row * rows + key * keys they read, on top of the step's decodes
//
// The first is learnt from steps without chunks, the second from what the others take beyond it.
// One sum for both would not do: while prompts come in, rows, decodes and keys grow together, so
// what chunks cost could pass for the decodes' cost. Errors count relative to the step (one of 2 ms
// counts as much as one of 200). No clock: whoever ran a step says how long it took.
#pragma once

#include <cstdint>
#include <string>

#include "engine/linear_fit.h"
#include "executor/step_batch.h"

namespace lapidary {

// What the cost of a step depends on. Keys are pairs of a row and a cached token before it: rows of
// a chunk read a key together, a decode reads it for itself.
struct StepShape {
  int32_t num_decode_rows = 0;
  int32_t num_chunk_rows = 0;
  double num_decode_keys = 0.0;
  double num_chunk_keys = 0.0;

  int32_t num_rows() const { return num_decode_rows + num_chunk_rows; }
  // So many rows of one sequence behind `num_cached` tokens.
  void AddDecode(int32_t num_rows, int32_t num_cached);
  void AddChunk(int32_t num_rows, int32_t num_cached);
};

// Without text that may be drafted: seldom is there much of it.
StepShape ShapeOf(const StepBatch& batch);

class StepCost {
 public:
  void Observe(const StepShape& shape, double ms);

  // False until a step was observed; then costs are guesses that the next steps correct.
  bool is_known() const { return is_known_; }
  double Milliseconds(const StepShape& shape) const;
  // Of the step without its chunks.
  double DecodeMilliseconds(const StepShape& shape) const;
  // What a chunk behind `num_cached` tokens adds to a step.
  double ChunkMilliseconds(int32_t num_rows, int32_t num_cached) const;
  // Most rows of a chunk that add at most `ms`, up to `max_rows`.
  int32_t RowsWithin(double ms, int32_t num_cached, int32_t max_rows) const;

  // "20.1 ms + 30 us a decode + 0.2 us a thousand keys; chunks: 11.5 us a row + 0.02 us a thousand
  // keys"
  std::string ToString() const;

 private:
  using DecodeFit = LinearFit<3>;  // the step, its rows, their keys
  using ChunkFit = LinearFit<2>;   // rows, their keys

  static DecodeFit::Terms DecodeTerms(const StepShape& shape);
  static ChunkFit::Terms ChunkTerms(const StepShape& shape);
  void Begin(const StepShape& shape, double ms);

  bool is_known_ = false;
  DecodeFit decodes_;
  ChunkFit chunks_;
};

}  // namespace lapidary
