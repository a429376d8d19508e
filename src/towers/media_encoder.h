// Encodes images and audio to the rows that replace placeholder tokens, with whatever encoders a
// checkpoint has.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "device/device_choice.h"
#include "media/image.h"
#include "towers/encoded_media_cache.h"
#include "towers/shared_towers.h"
#include "towers/tower_plan.h"

namespace lapidary {

class MediaEncoder {
 public:
  static constexpr int64_t kDefaultCacheBytes = int64_t{256} << 20;

  // Reads the towers that are wanted. An error when the model has none of that kind, or its file
  // does not hold what the plan says. Towers whose shapes a GPU has no kernels for run on the CPU,
  // with `num_threads`.
  // `path`: a checkpoint directory, or an mmproj file.
  static Result<std::unique_ptr<MediaEncoder>> Load(const TowersPlan& plan,
                                                    const std::filesystem::path& path,
                                                    bool wants_images, bool wants_audio,
                                                    int num_threads,
                                                    const DeviceChoice& device = {},
                                                    int64_t cache_bytes = kDefaultCacheBytes);

  // From many threads at once. An error is one of the image or audio; a device that fails throws.
  // `max_soft_tokens`: see CheckSoftTokenBudget; 0: what the checkpoint says.
  Result<EncodedMedium> EncodeImage(const Image& image, int max_soft_tokens);
  // Samples at kAudioSampleRate.
  Result<EncodedMedium> EncodeAudio(std::span<const float> samples);

  // The same from files; one that was encoded lately is not even decoded.
  Result<EncodedMedium> EncodeImageFile(std::string_view file, int max_soft_tokens);
  Result<EncodedMedium> EncodeAudioFile(std::string_view file);
  EncodedMediaCache::Stats cache_stats() const { return cache_.stats(); }

 private:
  MediaEncoder(const TowersPlan& plan, int default_soft_tokens, std::unique_ptr<MediaTowers> towers,
               int64_t cache_bytes)
      : plan_(plan),
        default_soft_tokens_(default_soft_tokens),
        cache_(cache_bytes),
        towers_(std::move(towers)) {}

  const TowersPlan plan_;
  const int default_soft_tokens_;
  EncodedMediaCache cache_;  // by the file's digest
  SharedTowers towers_;
};

}  // namespace lapidary
