#include "towers/cuda/cuda_towers.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "media/log_mel.h"
#include "towers/audio_tower.h"
#include "towers/cuda/cuda_audio_tower.h"
#include "towers/cuda/cuda_vision_tower.h"
#include "towers/cuda/tower_memory.h"

namespace lapidary::cuda {
namespace {

class CudaTowers : public MediaTowers {
 public:
  CudaTowers(const TowersPlan& plan, const TowerTensors* vision, const TowerTensors* audio,
             int gpu_ordinal)
      : plan_(plan), gpu_ordinal_(gpu_ordinal), device_(gpu_ordinal) {
    int64_t tokens = 0;
    if (vision != nullptr) {
      tokens = kMaxTowerCells;
      if (plan.vision_tower) vision_tower_.emplace(plan, *vision, device_);
      if (plan.cell_embedder) cell_embedder_.emplace(plan, *vision, device_);
    }
    if (audio != nullptr) {
      tokens = std::max<int64_t>(tokens, kMaxWaveTokens);
      if (plan.audio_tower) audio_tower_.emplace(plan, *audio, device_);
      if (plan.wave_embedder) wave_embedder_.emplace(plan, *audio, device_);
    }
    rows_ = PinnedBuffer(tokens * plan.text_hidden * int64_t{sizeof(float)}, "encoded media");
  }
  ~CudaTowers() override { cudaStreamSynchronize(device_.stream()); }

  std::vector<std::vector<float>> EncodeImages(
      std::span<const ImagePatches* const> images) override {
    UseDevice();
    std::vector<std::vector<float>> rows;
    while (!images.empty()) {
      // As many as fit; one always does.
      int num_patches = images[0]->num_patches();
      size_t count = 1;
      while (count < images.size() && num_patches + images[count]->num_patches() <= max_patches()) {
        num_patches += images[count++]->num_patches();
      }
      EncodeBatch(images.first(count), rows);
      images = images.subspan(count);
    }
    return rows;
  }

  bool gains_by_batches() const override { return true; }

  std::vector<float> EncodeMel(std::span<const float> mel) override {
    UseDevice();
    audio_tower_.value().Encode(mel, rows_.As<float>());
    return TakeRows(cpu::AudioTower::NumTokens(static_cast<int>(mel.size()) / kNumMelBands));
  }

  std::vector<float> EncodeSamples(std::span<const float> samples) override {
    UseDevice();
    const size_t per_token = plan_.wave_embedder->num_samples;
    std::vector<float> rows;
    while (!samples.empty()) {
      const auto part = samples.first(std::min(samples.size(), kMaxWaveTokens * per_token));
      wave_embedder_.value().Encode(part, rows_.As<float>());
      const std::vector<float> own =
          TakeRows(static_cast<int64_t>((part.size() + per_token - 1) / per_token));
      rows.insert(rows.end(), own.begin(), own.end());
      samples = samples.subspan(part.size());
    }
    return rows;
  }

 private:
  // Of the calling thread, whichever it is.
  void UseDevice() { LAPIDARY_CUDA_CHECK(cudaSetDevice(gpu_ordinal_)); }

  int max_patches() const { return vision_tower_ ? kMaxTowerPatches : kMaxTowerCells; }

  void EncodeBatch(std::span<const ImagePatches* const> images,
                   std::vector<std::vector<float>>& rows) {
    CHECK(vision_tower_ || cell_embedder_);
    if (vision_tower_) {
      vision_tower_->Run(vision_tower_->Stage(images), rows_.As<float>());
    } else {
      cell_embedder_->Encode(images, rows_.As<float>());
    }
    const int per_token = vision_tower_ ? plan_.grid.kernel * plan_.grid.kernel : 1;
    int64_t first = 0;
    for (const ImagePatches* image : images) {
      const int64_t tokens = image->num_patches() / per_token;
      rows.push_back(TakeRows(tokens, first));
      first += tokens;
    }
  }

  // Once they are there.
  std::vector<float> TakeRows(int64_t tokens, int64_t first = 0) {
    LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(device_.stream()));
    const float* const from = rows_.As<float>() + first * plan_.text_hidden;
    return {from, from + tokens * plan_.text_hidden};
  }

  const TowersPlan plan_;
  const int gpu_ordinal_;
  TowerDevice device_;
  std::optional<CudaVisionTower> vision_tower_;
  std::optional<CudaCellEmbedder> cell_embedder_;
  std::optional<CudaAudioTower> audio_tower_;
  std::optional<CudaWaveEmbedder> wave_embedder_;
  PinnedBuffer rows_;  // f32 [tokens, text hidden]
};

}  // namespace

Status CudaTowersSupport(const TowersPlan& plan) {
  if (plan.vision_tower) RETURN_IF_ERROR(VisionTowerSupport(plan));
  if (plan.cell_embedder) RETURN_IF_ERROR(CellEmbedderSupport(plan));
  if (plan.audio_tower) RETURN_IF_ERROR(AudioTowerSupport(plan));
  if (plan.wave_embedder) RETURN_IF_ERROR(WaveEmbedderSupport(plan));
  return {};
}

Result<std::unique_ptr<MediaTowers>> MakeCudaTowers(const TowersPlan& plan,
                                                    const TowerTensors* vision,
                                                    const TowerTensors* audio, int gpu_ordinal) {
  RETURN_IF_ERROR(CudaTowersSupport(plan));
  try {
    LAPIDARY_CUDA_CHECK(cudaSetDevice(gpu_ordinal));
    return std::unique_ptr<MediaTowers>(
        std::make_unique<CudaTowers>(plan, vision, audio, gpu_ordinal));
  } catch (const CudaError& error) {
    return MakeError("{}", error.what());
  }
}

}  // namespace lapidary::cuda
