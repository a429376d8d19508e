#include "towers/cuda/tower_memory.h"

#include <algorithm>

#include "media/log_mel.h"
#include "ops/cuda/towers/padded_head.h"
#include "towers/tower_specs.h"

namespace lapidary::cuda {
namespace {

constexpr int64_t kF32 = 4;
constexpr int64_t kBf16 = 2;
constexpr int64_t kPlaceBytes = 8;                     // a GridPlace
constexpr int64_t kPatchBytes = kPlaceBytes + 12 + 8;  // with a PatchTile and a PooledCell
constexpr int64_t kStagedSlack = 4096;                 // for aligning the arrays

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// q, k and v of clipped linears may each clamp their input.
template <typename Tower>
int64_t Inputs(const Tower& tower) {
  return tower.is_clipped ? 3 : 1;
}

// Matrices and position tables are held as bf16, the rest as f32.
int64_t WeightBytes(const std::vector<TensorSpec>& specs) {
  int64_t bytes = 0;
  for (const TensorSpec& spec : specs) {
    if (MayBeMissing(spec)) continue;
    int64_t count = 1;
    for (const int64_t dim : spec.shape) count *= dim;
    bytes += count * (spec.shape.size() > 1 ? kBf16 : kF32);
  }
  return bytes;
}

}  // namespace

TowerBuffers PlanVisionTower(const TowersPlan& plan) {
  const VisionTowerPlan& tower = *plan.vision_tower;
  const int64_t patches = kMaxTowerPatches;
  const int64_t cells = patches / (plan.grid.kernel * plan.grid.kernel);
  const int64_t patch_values = int64_t{3} * plan.grid.patch * plan.grid.patch;
  const int64_t head_values = int64_t{tower.num_heads} * tower.head_dim;
  const int64_t mlp_width = RoundUp(tower.mlp_width, 8);
  const int64_t padded_heads = int64_t{tower.num_heads} * PaddedHeadDim(tower.head_dim);
  TowerBuffers buffers;
  buffers.staged = patches * (patch_values * kF32 + kPatchBytes) + kStagedSlack;
  buffers.hidden = patches * tower.hidden * kF32;
  buffers.x = patches * std::max({patch_values, Inputs(tower) * tower.hidden, head_values}) * kBf16;
  buffers.wide = std::max(patches * 3 * head_values, kTowerMlpRows * 2 * mlp_width) * kBf16;
  buffers.gated = kTowerMlpRows * mlp_width * kBf16;
  buffers.heads = 3 * patches * padded_heads * kBf16;
  buffers.added = patches * tower.hidden * kBf16;
  buffers.out = cells * plan.text_hidden * kF32;
  return buffers;
}

TowerBuffers PlanCellEmbedder(const TowersPlan& plan) {
  const int64_t cells = kMaxTowerCells;
  const int64_t hidden = plan.cell_embedder->hidden;
  const int64_t cell_values = int64_t{3} * plan.grid.cell() * plan.grid.cell();
  TowerBuffers buffers;
  buffers.staged = cells * (cell_values * kF32 + kPlaceBytes) + kStagedSlack;
  buffers.hidden = cells * hidden * kF32;
  buffers.x = cells * std::max(cell_values, hidden) * kBf16;
  buffers.out = cells * plan.text_hidden * kF32;
  return buffers;
}

TowerBuffers PlanAudioTower(const TowersPlan& plan) {
  const AudioTowerPlan& tower = *plan.audio_tower;
  const int64_t tokens = kMaxAudioTokens;
  const int64_t hidden = tower.hidden;
  const int64_t ff_width = 4 * hidden;
  const int64_t subsampled = kNumMelBands / 4 * tower.channels[1];
  TowerBuffers buffers;
  buffers.staged = int64_t{kMaxMelFrames} * kNumMelBands * kF32;
  buffers.features = int64_t{kMaxMelFrames / 2} * (kNumMelBands / 2) * tower.channels[0] * kF32;
  buffers.hidden = tokens * hidden * kF32;
  buffers.x =
      tokens * std::max<int64_t>({Inputs(tower) * hidden, subsampled, tower.output_dim}) * kBf16;
  buffers.wide = tokens * std::max(3 * hidden, ff_width) * kBf16;
  buffers.gated = tokens * ff_width * kBf16;
  buffers.added = tokens * hidden * kBf16;
  buffers.output = tokens * tower.output_dim * kF32;
  buffers.out = tokens * plan.text_hidden * kF32;
  return buffers;
}

TowerBuffers PlanWaveEmbedder(const TowersPlan& plan) {
  const int64_t values = int64_t{kMaxWaveTokens} * plan.wave_embedder->num_samples;
  TowerBuffers buffers;
  buffers.staged = values * kF32;
  buffers.x = values * kBf16;
  buffers.out = int64_t{kMaxWaveTokens} * plan.text_hidden * kF32;
  return buffers;
}

int64_t TowerDeviceBytes(const TowersPlan& plan, bool wants_images, bool wants_audio) {
  int64_t weights = 0;
  int64_t buffers = 0;
  if (wants_images && plan.has_vision()) {
    weights += WeightBytes(VisionTensors(plan));
    buffers += (plan.vision_tower ? PlanVisionTower(plan) : PlanCellEmbedder(plan)).total();
  }
  if (wants_audio && plan.has_audio()) {
    weights += WeightBytes(AudioTensors(plan));
    buffers += (plan.audio_tower ? PlanAudioTower(plan) : PlanWaveEmbedder(plan)).total();
  }
  return RoundUp(weights, kTowerSlabBytes) + buffers;
}

}  // namespace lapidary::cuda
