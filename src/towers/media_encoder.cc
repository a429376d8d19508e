#include "towers/media_encoder.h"

#include <algorithm>

#include "media/log_mel.h"
#include "media/resize.h"
#include "towers/tower_specs.h"

namespace lapidary {

const char* MediaKindName(MediaKind kind) { return kind == MediaKind::kImage ? "image" : "audio"; }

Result<std::unique_ptr<MediaEncoder>> MediaEncoder::Load(const TowersPlan& plan,
                                                         const std::filesystem::path& directory,
                                                         bool wants_images, bool wants_audio,
                                                         int num_threads) {
  if (wants_images && !plan.has_vision()) {
    return MakeError("{} takes no images: its config.json has no vision_config",
                     directory.string());
  }
  if (wants_audio && !plan.has_audio()) {
    return MakeError("{} takes no audio: its config.json has no audio_config", directory.string());
  }
  std::unique_ptr<MediaEncoder> encoder(new MediaEncoder(plan, num_threads));
  if (wants_images) {
    ASSIGN_OR_RETURN(TowerTensors tensors, TowerTensors::Open(directory, VisionTensors(plan)));
    encoder->tensors_.push_back(tensors);
    if (plan.vision_tower) encoder->vision_tower_.emplace(plan, tensors);
    if (plan.cell_embedder) encoder->cell_embedder_.emplace(plan, tensors);
  }
  if (wants_audio) {
    ASSIGN_OR_RETURN(TowerTensors tensors, TowerTensors::Open(directory, AudioTensors(plan)));
    encoder->tensors_.push_back(tensors);
    if (plan.audio_tower) encoder->audio_tower_.emplace(plan, tensors);
    if (plan.wave_embedder) encoder->wave_embedder_.emplace(plan, tensors);
  }
  return encoder;
}

Result<EncodedMedium> MediaEncoder::EncodeImage(const Image& image, int max_soft_tokens) {
  CHECK(vision_tower_ || cell_embedder_);
  RETURN_IF_ERROR(CheckSoftTokenBudget(max_soft_tokens));
  const PatchGrid grid = plan_.grid;
  const int64_t max_patches = int64_t{max_soft_tokens} * grid.kernel * grid.kernel;
  ASSIGN_OR_RETURN(const ImageSize size,
                   TargetSize({image.height, image.width}, grid, max_patches));
  const int unit = vision_tower_ ? grid.patch : grid.cell();
  const int num_positions =
      vision_tower_ ? plan_.vision_tower->num_positions : plan_.cell_embedder->num_positions;
  if (std::max(size.height, size.width) / unit > num_positions) {
    return MakeError("an image of {} x {} pixels needs {} positions; the model has {}",
                     image.height, image.width, std::max(size.height, size.width) / unit,
                     num_positions);
  }
  const ImagePatches patches = CutPatches(ResizeBicubic(image, size), unit);
  EncodedMedium medium{MediaKind::kImage, NumSoftTokens(size, grid), size.height, size.width, {}};
  const std::lock_guard lock(mutex_);
  medium.rows = vision_tower_ ? vision_tower_->Encode(patches, threads_)
                              : cell_embedder_->Encode(patches, threads_);
  return medium;
}

Result<EncodedMedium> MediaEncoder::EncodeAudio(std::span<const float> samples) {
  CHECK(audio_tower_ || wave_embedder_);
  EncodedMedium medium;
  medium.kind = MediaKind::kAudio;
  if (audio_tower_) {
    const std::vector<float> mel = LogMel(samples);
    medium.num_tokens =
        cpu::AudioTower::NumTokens(NumMelFrames(static_cast<int64_t>(samples.size())));
    if (medium.num_tokens == 0) {
      return MakeError("the audio has {} samples at 16 kHz; it needs 161 at least", samples.size());
    }
    const std::lock_guard lock(mutex_);
    medium.rows = audio_tower_->Encode(mel, threads_);
  } else {
    medium.num_tokens = wave_embedder_->NumTokens(static_cast<int64_t>(samples.size()));
    const std::lock_guard lock(mutex_);
    medium.rows = wave_embedder_->Encode(samples, threads_);
  }
  return medium;
}

}  // namespace lapidary
