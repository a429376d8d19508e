#include "towers/shared_towers.h"

#include <utility>

namespace lapidary {

// Whoever has the towers next takes all that came while they were in use; the others find theirs
// done.
std::vector<float> SharedTowers::EncodeImage(const ImagePatches& patches) {
  WaitingImage own{.patches = &patches};
  if (towers_->gains_by_batches()) {
    const std::lock_guard lock(waiting_mutex_);
    waiting_.push_back(&own);
  }
  const std::lock_guard lock(mutex_);
  if (!own.is_done) {
    std::vector<WaitingImage*> batch = {&own};
    if (towers_->gains_by_batches()) {
      const std::lock_guard waiting_lock(waiting_mutex_);
      batch = std::exchange(waiting_, {});
    }
    EncodeBatch(batch);
  }
  if (own.failure) std::rethrow_exception(own.failure);
  return std::move(own.rows);
}

void SharedTowers::EncodeBatch(std::span<WaitingImage* const> batch) {
  std::vector<const ImagePatches*> images;
  for (const WaitingImage* image : batch) images.push_back(image->patches);
  std::vector<std::vector<float>> rows(batch.size());
  std::exception_ptr failure;
  try {
    rows = towers_->EncodeImages(images);
  } catch (...) {
    failure = std::current_exception();
  }
  for (size_t idx = 0; idx < batch.size(); ++idx) {
    batch[idx]->rows = std::move(rows[idx]);
    batch[idx]->failure = failure;
    batch[idx]->is_done = true;
  }
}

std::vector<float> SharedTowers::EncodeMel(std::span<const float> mel) {
  const std::lock_guard lock(mutex_);
  return towers_->EncodeMel(mel);
}

std::vector<float> SharedTowers::EncodeSamples(std::span<const float> samples) {
  const std::lock_guard lock(mutex_);
  return towers_->EncodeSamples(samples);
}

}  // namespace lapidary
