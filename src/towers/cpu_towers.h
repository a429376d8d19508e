// The vision and audio encoders of a model on the CPU.
#pragma once

#include <memory>
#include <optional>

#include "towers/audio_tower.h"
#include "towers/media_towers.h"
#include "towers/vision_tower.h"

namespace lapidary::cpu {

class CpuTowers : public MediaTowers {
 public:
  // The tensors of what is wanted; null: not wanted. They are kept.
  CpuTowers(const TowersPlan& plan, const TowerTensors* vision, const TowerTensors* audio,
            int num_threads);

  std::vector<std::vector<float>> EncodeImages(
      std::span<const ImagePatches* const> images) override;
  std::vector<float> EncodeMel(std::span<const float> mel) override;
  std::vector<float> EncodeSamples(std::span<const float> samples) override;

 private:
  std::vector<TowerTensors> tensors_;  // hold what the towers point into
  std::optional<VisionTower> vision_tower_;
  std::optional<CellEmbedder> cell_embedder_;
  std::optional<AudioTower> audio_tower_;
  std::optional<WaveEmbedder> wave_embedder_;
  ThreadPool threads_;
};

}  // namespace lapidary::cpu
