// Vision and audio encoders that many threads share.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "towers/media_towers.h"

namespace lapidary {

// Images that wait for each other become a batch where that is faster. What a failing device
// throws, everybody gets who was in that batch; the next one begins anew.
class SharedTowers {
 public:
  explicit SharedTowers(std::unique_ptr<MediaTowers> towers) : towers_(std::move(towers)) {}

  // As MediaTowers has them.
  std::vector<float> EncodeImage(const ImagePatches& patches);
  std::vector<float> EncodeMel(std::span<const float> mel);
  std::vector<float> EncodeSamples(std::span<const float> samples);

 private:
  // An image between its arrival and its rows.
  struct WaitingImage {
    const ImagePatches* patches = nullptr;
    bool is_done = false;
    std::vector<float> rows = {};
    std::exception_ptr failure = nullptr;
  };
  void EncodeBatch(std::span<WaitingImage* const> batch);

  std::mutex waiting_mutex_;
  std::vector<WaitingImage*> waiting_;  // guarded by waiting_mutex_
  std::mutex mutex_;
  const std::unique_ptr<MediaTowers> towers_;  // guarded by mutex_
};

}  // namespace lapidary
