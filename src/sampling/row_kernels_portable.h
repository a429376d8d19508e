// The passes of row_kernels.h in plain scalar code: the tails of the vector loops, the whole pass
// where there are no vectors, and what the tests hold the vector code to, bit for bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "sampling/row_kernels.h"

namespace lapidary::portable {

struct Runner {
  float score = 0.0f;
  int32_t id = -1;
};

// Continues a scan at block `first_block`, given the maximum of the blocks before it.
inline RowScan ScanRow(std::span<const float> row, std::span<float> block_max,
                       size_t first_block = 0, float max = -std::numeric_limits<float>::infinity(),
                       bool has_nan = false) {
  for (size_t block = first_block; block < block_max.size(); ++block) {
    const size_t end = std::min(row.size(), (block + 1) * kRowBlock);
    float best = -std::numeric_limits<float>::infinity();
    for (size_t id = block * kRowBlock; id < end; ++id) {
      has_nan |= std::isnan(row[id]);
      best = std::max(best, row[id]);
    }
    block_max[block] = best;
    max = std::max(max, best);
  }
  return {max, !has_nan && std::isfinite(max)};
}

inline uint64_t RowMass(std::span<const float> row, float max, float inv_temperature,
                        float* weights = nullptr, size_t first_id = 0) {
  uint64_t mass = 0;
  for (size_t id = first_id; id < row.size(); ++id) {
    const float weight = TokenWeight(row[id], max, inv_temperature);
    if (weights != nullptr) weights[id] = weight;
    mass += TokenMass(weight);
  }
  return mass;
}

// Tokens run in ascending order of id, so the strict comparison leaves a tie to the lower id.
inline void RunToken(float x, int32_t id, const RaceSettings& settings, Runner& leader) {
  const float weight = TokenWeight(x, settings.max, settings.inv_temperature);
  if (weight < settings.min_weight || !settings.cutoff.Keeps(x, id)) return;
  const float score = RaceScore(weight, id, settings.seed, settings.position);
  if (score > leader.score) leader = {score, id};
}

inline int32_t RaceRow(std::span<const float> row, const RaceSettings& settings,
                       size_t first_id = 0, Runner leader = {}) {
  for (size_t id = first_id; id < row.size(); ++id) {
    RunToken(row[id], static_cast<int32_t>(id), settings, leader);
  }
  return leader.id;
}

}  // namespace lapidary::portable
