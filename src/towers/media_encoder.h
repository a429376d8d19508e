// Pictures and sounds to the rows that replace placeholder tokens, with whatever towers a
// checkpoint has.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "media/image.h"
#include "towers/audio_tower.h"
#include "towers/encoded_media_cache.h"
#include "towers/vision_tower.h"

namespace lapidary {

class MediaEncoder {
 public:
  static constexpr int64_t kDefaultCacheBytes = int64_t{256} << 20;

  // Reads the towers that are wanted. An error when the model has none of that kind, or its file
  // does not hold what the plan says.
  static Result<std::unique_ptr<MediaEncoder>> Load(const TowersPlan& plan,
                                                    const std::filesystem::path& directory,
                                                    bool wants_images, bool wants_audio,
                                                    int num_threads,
                                                    int64_t cache_bytes = kDefaultCacheBytes);

  // From many threads at once, one after the other. `max_soft_tokens`: see CheckSoftTokenBudget.
  Result<EncodedMedium> EncodeImage(const Image& image, int max_soft_tokens);
  // Samples at kAudioSampleRate.
  Result<EncodedMedium> EncodeAudio(std::span<const float> samples);

  // The same from files; one that was encoded lately is not even decoded.
  Result<EncodedMedium> EncodeImageFile(std::string_view file, int max_soft_tokens);
  Result<EncodedMedium> EncodeAudioFile(std::string_view file);
  EncodedMediaCache::Stats cache_stats() const { return cache_.stats(); }

 private:
  MediaEncoder(const TowersPlan& plan, int num_threads, int64_t cache_bytes)
      : plan_(plan), cache_(cache_bytes), threads_(num_threads) {}

  const TowersPlan plan_;
  std::vector<TowerTensors> tensors_;  // hold what the towers point into
  std::optional<cpu::VisionTower> vision_tower_;
  std::optional<cpu::CellEmbedder> cell_embedder_;
  std::optional<cpu::AudioTower> audio_tower_;
  std::optional<cpu::WaveEmbedder> wave_embedder_;
  EncodedMediaCache cache_;  // by the file's digest
  std::mutex mutex_;
  ThreadPool threads_;  // guarded by mutex_
};

}  // namespace lapidary
