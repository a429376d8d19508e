#include "engine/step_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lapidary {
namespace {

// A hiccup of the machine counts as a step so many times as slow as expected. What really became
// slower is learnt all the same, within a few steps.
constexpr double kMostSurprise = 3.0;
// A chunk that is less of its step says nothing: beside the reading of all weights the first rows
// cost nothing.
constexpr double kLeastChunkPart = 0.2;
constexpr double kLeastMs = 1e-6;

}  // namespace

void StepShape::AddDecode(int32_t num_rows, int32_t num_cached) {
  num_decode_rows += num_rows;
  num_decode_keys += static_cast<double>(num_rows) * num_cached;
}

void StepShape::AddChunk(int32_t num_rows, int32_t num_cached) {
  num_chunk_rows += num_rows;
  num_chunk_keys += num_rows * (num_cached + 0.5 * num_rows);
}

StepShape ShapeOf(const StepBatch& batch) {
  StepShape shape;
  for (const SequenceStep& step : batch.sequences) {
    if (step.num_rows - step.num_drafts > 1) {
      shape.AddChunk(step.num_rows - step.num_drafts, step.num_cached);
    } else {
      const int32_t num_drafts = step.quota ? step.quota->assistant : step.num_drafts;
      shape.AddDecode(1 + num_drafts, step.num_cached);
    }
  }
  return shape;
}

StepCost::DecodeFit::Terms StepCost::DecodeTerms(const StepShape& shape) {
  return {1.0, static_cast<double>(shape.num_decode_rows), shape.num_decode_keys};
}

StepCost::ChunkFit::Terms StepCost::ChunkTerms(const StepShape& shape) {
  return {static_cast<double>(shape.num_chunk_rows), shape.num_chunk_keys};
}

double StepCost::DecodeMilliseconds(const StepShape& shape) const {
  return decodes_.Value(DecodeTerms(shape));
}

double StepCost::Milliseconds(const StepShape& shape) const {
  return DecodeMilliseconds(shape) + chunks_.Value(ChunkTerms(shape));
}

void StepCost::Begin(const StepShape& shape, double ms) {
  // One step says nothing about its parts, and everything may be wrong. A row with arithmetic to do
  // is a small part of reading all weights, and attention to so many keys costs about as much as
  // the rest of a row: 31B's products are 62 GFLOP a row, its full layers 0.65 MFLOP a key; smaller
  // models have fewer.
  constexpr double kRowsPerStep = 32.0;
  constexpr double kKeysPerRow = 30'000.0;
  const double row_ms = ms / (kRowsPerStep + shape.num_rows());
  const double fixed_ms = kRowsPerStep * row_ms;
  decodes_ = {{fixed_ms, 0.0, 0.0}, {ms, 0.25 * ms, 8.0 * row_ms / kKeysPerRow}};
  chunks_ = {{row_ms, 0.0}, {2.0 * row_ms, row_ms / kKeysPerRow}};
  is_known_ = true;
}

void StepCost::Observe(const StepShape& shape, double ms) {
  if (shape.num_rows() == 0) return;
  ms = std::max(ms, kLeastMs);
  if (!is_known_) return Begin(shape, ms);
  ms = std::min(ms, kMostSurprise * std::max(Milliseconds(shape), kLeastMs));
  if (shape.num_chunk_rows == 0) return decodes_.Observe(DecodeTerms(shape), ms, ms);
  const ChunkFit::Terms terms = ChunkTerms(shape);
  const double chunk_ms = std::max(ms - DecodeMilliseconds(shape), 0.0);
  if (std::max(chunk_ms, chunks_.Value(terms)) < kLeastChunkPart * ms) return;
  chunks_.Observe(terms, chunk_ms, ms);
}

double StepCost::ChunkMilliseconds(int32_t num_rows, int32_t num_cached) const {
  StepShape chunk;
  chunk.AddChunk(num_rows, num_cached);
  return chunks_.Value(ChunkTerms(chunk));
}

int32_t StepCost::RowsWithin(double ms, int32_t num_cached, int32_t max_rows) const {
  if (ms <= 0.0) return 0;
  const auto& [row_ms, key_ms] = chunks_.coefficients();
  // Each row reads what is cached and half of the chunk on average:
  //   rows * (row + key * num_cached) + rows^2 * key / 2 = ms
  const double linear = row_ms + key_ms * num_cached;
  const double square = 0.5 * key_ms;
  const double root = std::sqrt(linear * linear + 4.0 * square * ms);
  if (linear + root <= 0.0) return max_rows;
  const double num_rows = 2.0 * ms / (linear + root);  // finite also when square is 0
  return num_rows >= max_rows ? max_rows : static_cast<int32_t>(num_rows);
}

std::string StepCost::ToString() const {
  const auto& [fixed_ms, decode_ms, decode_key_ms] = decodes_.coefficients();
  const auto& [row_ms, key_ms] = chunks_.coefficients();
  return fmt::format(
      "{:.3g} ms + {:.3g} us a decode + {:.3g} us a thousand keys; chunks: {:.3g} us a row + "
      "{:.3g} "
      "us a thousand keys",
      fixed_ms, decode_ms * 1e3, decode_key_ms * 1e6, row_ms * 1e3, key_ms * 1e6);
}

}  // namespace lapidary
