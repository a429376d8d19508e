// The interface of vision and audio encoders: one implementation for each device.
#pragma once

#include <span>
#include <vector>

#include "media/patches.h"

namespace lapidary {

// Of one model; which of these may be called follows from its TowersPlan and what was loaded. From
// one thread at a time. Whatever is wrong with an image or audio was found before: a device that
// fails throws.
class MediaTowers {
 public:
  virtual ~MediaTowers() = default;

  // Patches of grid.patch pixels for a tower, of grid.cell() for a CellEmbedder -> [cells, text
  // hidden] of each image, row-major over cells.
  virtual std::vector<std::vector<float>> EncodeImages(
      std::span<const ImagePatches* const> images) = 0;
  // Whether several images at once take less time than one after the other.
  virtual bool gains_by_batches() const { return false; }
  // Of an audio tower: mel [frames, kNumMelBands] -> [tokens, text hidden].
  virtual std::vector<float> EncodeMel(std::span<const float> mel) = 0;
  // Of a WaveEmbedder: samples -> [tokens, text hidden].
  virtual std::vector<float> EncodeSamples(std::span<const float> samples) = 0;
};

}  // namespace lapidary
