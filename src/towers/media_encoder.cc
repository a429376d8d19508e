#include "towers/media_encoder.h"

#include <algorithm>

#include "media/decode_audio.h"
#include "media/decode_image.h"
#include "media/log_mel.h"
#include "media/resize.h"
#include "towers/tower_specs.h"

namespace lapidary {
namespace {

std::shared_ptr<const std::vector<float>> Share(std::vector<float> rows) {
  return std::make_shared<const std::vector<float>>(std::move(rows));
}

}  // namespace

const char* MediaKindName(MediaKind kind) { return kind == MediaKind::kImage ? "image" : "audio"; }

Result<std::unique_ptr<MediaEncoder>> MediaEncoder::Load(const TowersPlan& plan,
                                                         const std::filesystem::path& directory,
                                                         bool wants_images, bool wants_audio,
                                                         int num_threads, int64_t cache_bytes) {
  if (wants_images && !plan.has_vision()) {
    return MakeError("{} takes no images: its config.json has no vision_config",
                     directory.string());
  }
  if (wants_audio && !plan.has_audio()) {
    return MakeError("{} takes no audio: its config.json has no audio_config", directory.string());
  }
  std::unique_ptr<MediaEncoder> encoder(new MediaEncoder(plan, num_threads, cache_bytes));
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
  const Image resized = ResizeBicubic(image, size);
  EncodedMedium medium;
  medium.kind = MediaKind::kImage;
  medium.num_tokens = NumSoftTokens(size, grid);
  medium.height = size.height;
  medium.width = size.width;
  medium.digest = DigestContent(std::as_bytes(std::span(resized.rgb)), {size.height, size.width});
  const ImagePatches patches = CutPatches(resized, unit);
  const std::lock_guard lock(mutex_);
  medium.rows = Share(vision_tower_ ? vision_tower_->Encode(patches, threads_)
                                    : cell_embedder_->Encode(patches, threads_));
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
    medium.digest = DigestContent(std::as_bytes(std::span(mel)), {});
    const std::lock_guard lock(mutex_);
    medium.rows = Share(audio_tower_->Encode(mel, threads_));
  } else {
    medium.num_tokens = wave_embedder_->NumTokens(static_cast<int64_t>(samples.size()));
    medium.digest = DigestContent(std::as_bytes(samples), {});
    const std::lock_guard lock(mutex_);
    medium.rows = Share(wave_embedder_->Encode(samples, threads_));
  }
  return medium;
}

Result<EncodedMedium> MediaEncoder::EncodeImageFile(std::string_view file, int max_soft_tokens) {
  const ContentDigest key = DigestContent(std::as_bytes(std::span(file)), {max_soft_tokens});
  if (const auto kept = cache_.Find(key)) return *kept;
  ASSIGN_OR_RETURN(const Image image, DecodeImage(file));
  ASSIGN_OR_RETURN(EncodedMedium medium, EncodeImage(image, max_soft_tokens));
  cache_.Put(key, medium);
  return medium;
}

Result<EncodedMedium> MediaEncoder::EncodeAudioFile(std::string_view file) {
  const ContentDigest key = DigestContent(std::as_bytes(std::span(file)), {});
  if (const auto kept = cache_.Find(key)) return *kept;
  ASSIGN_OR_RETURN(const std::vector<float> samples, DecodeAudio(file));
  ASSIGN_OR_RETURN(EncodedMedium medium, EncodeAudio(samples));
  cache_.Put(key, medium);
  return medium;
}

}  // namespace lapidary
