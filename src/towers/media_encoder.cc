#include "towers/media_encoder.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "media/decode_audio.h"
#include "media/decode_image.h"
#include "media/log_mel.h"
#include "media/resize.h"
#include "towers/cpu_towers.h"
#include "towers/cuda/cuda_towers.h"
#include "towers/processor_config.h"
#include "towers/tower_specs.h"

namespace lapidary {
namespace {

std::shared_ptr<const std::vector<float>> Share(std::vector<float> rows) {
  return std::make_shared<const std::vector<float>>(std::move(rows));
}

Result<std::unique_ptr<MediaTowers>> MakeTowers(const TowersPlan& plan, const TowerTensors* vision,
                                                const TowerTensors* audio, int num_threads,
                                                const DeviceChoice& device) {
  if (device.kind == DeviceKind::kCuda) {
    const Status status = cuda::CudaTowersSupport(plan);
    if (status.ok()) return cuda::MakeCudaTowers(plan, vision, audio, device.gpu_ordinal);
    spdlog::warn("images and audio are encoded on the CPU: the GPU has no kernels for {}",
                 status.error().message);
  }
  return std::unique_ptr<MediaTowers>(
      std::make_unique<cpu::CpuTowers>(plan, vision, audio, num_threads));
}

}  // namespace

const char* MediaKindName(MediaKind kind) { return kind == MediaKind::kImage ? "image" : "audio"; }

Result<std::unique_ptr<MediaEncoder>> MediaEncoder::Load(
    const TowersPlan& plan, const std::filesystem::path& path, bool wants_images, bool wants_audio,
    int num_threads, const DeviceChoice& device, int64_t cache_bytes) {
  if (wants_images && !plan.has_vision()) {
    return MakeError("{} takes no images: it has no tower for them", path.string());
  }
  if (wants_audio && !plan.has_audio()) {
    return MakeError("{} takes no audio: it has no tower for it", path.string());
  }
  ASSIGN_OR_RETURN(const int default_soft_tokens, ReadDefaultSoftTokens(path));
  std::optional<TowerTensors> vision;
  std::optional<TowerTensors> audio;
  if (wants_images) {
    ASSIGN_OR_RETURN(vision, TowerTensors::Open(path, VisionTensors(plan)));
  }
  if (wants_audio) {
    ASSIGN_OR_RETURN(audio, TowerTensors::Open(path, AudioTensors(plan)));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<MediaTowers> towers,
                   MakeTowers(plan, vision ? &*vision : nullptr, audio ? &*audio : nullptr,
                              num_threads, device));
  return std::unique_ptr<MediaEncoder>(
      new MediaEncoder(plan, default_soft_tokens, std::move(towers), cache_bytes));
}

Result<EncodedMedium> MediaEncoder::EncodeImage(const Image& image, int max_soft_tokens) {
  CHECK(plan_.has_vision());
  if (max_soft_tokens == 0) max_soft_tokens = default_soft_tokens_;
  RETURN_IF_ERROR(CheckSoftTokenBudget(max_soft_tokens));
  const PatchGrid grid = plan_.grid;
  const int64_t max_patches = int64_t{max_soft_tokens} * grid.kernel * grid.kernel;
  ASSIGN_OR_RETURN(const ImageSize size,
                   TargetSize({image.height, image.width}, grid, max_patches));
  const int unit = plan_.vision_tower ? grid.patch : grid.cell();
  const int num_positions =
      plan_.vision_tower ? plan_.vision_tower->num_positions : plan_.cell_embedder->num_positions;
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
  medium.rows = Share(towers_.EncodeImage(CutPatches(resized, unit)));
  return medium;
}

Result<EncodedMedium> MediaEncoder::EncodeAudio(std::span<const float> samples) {
  CHECK(plan_.has_audio());
  EncodedMedium medium;
  medium.kind = MediaKind::kAudio;
  const auto num_heard = plan_.audio_tower ? std::min<int64_t>(std::ssize(samples), kMaxMelSamples)
                                           : std::ssize(samples);
  medium.seconds = static_cast<double>(num_heard) / kAudioSampleRate;
  if (plan_.audio_tower) {
    const std::vector<float> mel = LogMel(samples);
    medium.num_tokens =
        cpu::AudioTower::NumTokens(NumMelFrames(static_cast<int64_t>(samples.size())));
    if (medium.num_tokens == 0) {
      return MakeError("the audio has {} samples at 16 kHz; it needs 161 at least", samples.size());
    }
    medium.digest = DigestContent(std::as_bytes(std::span(mel)), {});
    medium.rows = Share(towers_.EncodeMel(mel));
  } else {
    medium.num_tokens =
        cpu::WaveEmbedder::NumTokens(*plan_.wave_embedder, static_cast<int64_t>(samples.size()));
    medium.digest = DigestContent(std::as_bytes(samples), {});
    medium.rows = Share(towers_.EncodeSamples(samples));
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
