#include "towers/cpu_towers.h"

#include "base/check.h"

namespace lapidary::cpu {

CpuTowers::CpuTowers(const TowersPlan& plan, const TowerTensors* vision, const TowerTensors* audio,
                     int num_threads)
    : threads_(num_threads) {
  if (vision != nullptr) {
    tensors_.push_back(*vision);
    if (plan.vision_tower) vision_tower_.emplace(plan, *vision);
    if (plan.cell_embedder) cell_embedder_.emplace(plan, *vision);
  }
  if (audio != nullptr) {
    tensors_.push_back(*audio);
    if (plan.audio_tower) audio_tower_.emplace(plan, *audio);
    if (plan.wave_embedder) wave_embedder_.emplace(plan, *audio);
  }
}

std::vector<std::vector<float>> CpuTowers::EncodeImages(
    std::span<const ImagePatches* const> images) {
  CHECK(vision_tower_ || cell_embedder_);
  std::vector<std::vector<float>> rows;
  for (const ImagePatches* image : images) {
    rows.push_back(vision_tower_ ? vision_tower_->Encode(*image, threads_)
                                 : cell_embedder_->Encode(*image, threads_));
  }
  return rows;
}

std::vector<float> CpuTowers::EncodeMel(std::span<const float> mel) {
  CHECK(audio_tower_.has_value());
  return audio_tower_->Encode(mel, threads_);
}

std::vector<float> CpuTowers::EncodeSamples(std::span<const float> samples) {
  CHECK(wave_embedder_.has_value());
  return wave_embedder_->Encode(samples, threads_);
}

}  // namespace lapidary::cpu
