// The GPU memory of vision and audio encoders, in closed form: they take their sizes here, and
// `plan` says them before anything is loaded. No CUDA types.
#pragma once

#include <cstdint>

#include "towers/tower_plan.h"

namespace lapidary::cuda {

// A batch of images has at most so many patches or cells: as many as the largest image.
inline constexpr int kMaxTowerCells = 1120;
inline constexpr int kMaxTowerPatches = kMaxTowerCells * 9;
// A clip for a conformer is cut to 30 s; samples for an embedder come in calls of so many tokens.
inline constexpr int kMaxMelFrames = 3000;
inline constexpr int kMaxAudioTokens = 750;
inline constexpr int kMaxWaveTokens = 1024;
// Rows whose gates are computed at once: enough for full speed, and their buffers stay small.
inline constexpr int kTowerMlpRows = 5120;
// Weights lie in pieces of at least this size.
inline constexpr int64_t kTowerSlabBytes = int64_t{64} << 20;

// Bytes of each buffer; zero where a tower has none of its kind.
struct TowerBuffers {
  int64_t staged = 0;    // what comes from the host
  int64_t features = 0;  // of the first convolution
  int64_t hidden = 0;
  int64_t x = 0;
  int64_t wide = 0;
  int64_t gated = 0;
  int64_t heads = 0;
  int64_t added = 0;
  int64_t output = 0;
  int64_t out = 0;

  int64_t total() const {
    return staged + features + hidden + x + wide + gated + heads + added + output + out;
  }
};

TowerBuffers PlanVisionTower(const TowersPlan& plan);
TowerBuffers PlanCellEmbedder(const TowersPlan& plan);
TowerBuffers PlanAudioTower(const TowersPlan& plan);
TowerBuffers PlanWaveEmbedder(const TowersPlan& plan);

// Of the towers that are wanted: buffers to the byte, weights to a slab. 0 where the plan has none.
int64_t TowerDeviceBytes(const TowersPlan& plan, bool wants_images, bool wants_audio);

}  // namespace lapidary::cuda
