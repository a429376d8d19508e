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
#include "towers/vision_tower.h"

namespace lapidary {

enum class MediaKind { kImage, kAudio };
const char* MediaKindName(MediaKind kind);

struct EncodedMedium {
  MediaKind kind = MediaKind::kImage;
  int num_tokens = 0;
  // Of a picture as the tower saw it.
  int height = 0;
  int width = 0;
  std::vector<float> rows;  // [num_tokens, text hidden]
};

class MediaEncoder {
 public:
  // Reads the towers that are wanted. An error when the model has none of that kind, or its file
  // does not hold what the plan says.
  static Result<std::unique_ptr<MediaEncoder>> Load(const TowersPlan& plan,
                                                    const std::filesystem::path& directory,
                                                    bool wants_images, bool wants_audio,
                                                    int num_threads);

  // From many threads at once, one after the other. `max_soft_tokens`: see CheckSoftTokenBudget.
  Result<EncodedMedium> EncodeImage(const Image& image, int max_soft_tokens);
  // Samples at kAudioSampleRate.
  Result<EncodedMedium> EncodeAudio(std::span<const float> samples);

 private:
  MediaEncoder(const TowersPlan& plan, int num_threads) : plan_(plan), threads_(num_threads) {}

  const TowersPlan plan_;
  std::vector<TowerTensors> tensors_;  // hold what the towers point into
  std::optional<cpu::VisionTower> vision_tower_;
  std::optional<cpu::CellEmbedder> cell_embedder_;
  std::optional<cpu::AudioTower> audio_tower_;
  std::optional<cpu::WaveEmbedder> wave_embedder_;
  std::mutex mutex_;
  ThreadPool threads_;  // guarded by mutex_
};

}  // namespace lapidary
