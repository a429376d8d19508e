// Whole-row passes over the logits, vectorised (Highway, best instruction set at run time).
//
// Each gives the same bits on every instruction set: maxima and integer sums have no order, and the
// per-token arithmetic is that of draw.h.
#pragma once

#include <cstdint>
#include <span>

#include "sampling/draw.h"

namespace lapidary {

// Tokens per block of RowScan::block_max. 64 makes 4,096 blocks of Gemma's vocabulary: few enough
// to select among cheaply, and each small enough to visit whole.
inline constexpr int kRowBlock = 64;

constexpr int64_t NumRowBlocks(int64_t vocab_size) {
  return (vocab_size + kRowBlock - 1) / kRowBlock;
}

struct RowScan {
  float max = 0;
  // No NaN, no +inf, and at least one finite logit.
  bool valid = false;
};

// Fills block_max [NumRowBlocks(row.size())].
RowScan ScanRow(std::span<const float> row, std::span<float> block_max);

// Sum of TokenMass over the row. Writes the weights to `weights` [row.size()] if given, those too
// light to have mass possibly as zero.
uint64_t RowMass(std::span<const float> row, float max, float inv_temperature,
                 float* weights = nullptr);

// Every filter keeps the likeliest token; the race relies on it.
struct RaceSettings {
  float max = 0;  // Of the row.
  float inv_temperature = 1;
  float min_weight = 0;  // Tokens below it do not run.
  Cutoff cutoff = {};    // Nor do those beyond it.
  uint64_t seed = 0;
  uint64_t position = 0;
};

// The kept id with the largest RaceScore, the lower id among equals; -1 when nothing can win.
int32_t RaceRow(std::span<const float> row, const RaceSettings& settings);

// The same race among listed ids alone, given in ascending order.
int32_t RaceIds(std::span<const float> row, std::span<const int32_t> ids,
                const RaceSettings& settings);

}  // namespace lapidary
