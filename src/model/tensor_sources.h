// The two places weights come from: a checkpoint directory, or thin air.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "model/weights.h"

namespace lapidary {

// A mapped checkpoint, checked against the plan: every required tensor present in its shape and a
// weight type, and nothing in the file that the plan cannot explain.
class CheckpointSource : public TensorSource {
 public:
  static Result<std::unique_ptr<CheckpointSource>> Open(const std::filesystem::path& directory,
                                                        const ModelPlan& plan);
  static Result<std::unique_ptr<CheckpointSource>> Open(const std::filesystem::path& directory,
                                                        const AssistantPlan& plan);
  Result<TensorView> Get(const TensorSpec& spec) const override;
  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  explicit CheckpointSource(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  Checkpoint checkpoint_;
};

// Reads everything `plan` streams (not the per-layer embedding table, which is read by row) from
// the disk into the page cache, with a progress line. `source` is mapped.
void PrefaultWeights(const ModelPlan& plan, const TensorSource& source, ThreadPool& threads);

// Memory that can be used without swapping: MemAvailable of /proc/meminfo, or no limit where there
// is no such file.
int64_t AvailableMemoryBytes();

// Synthetic bf16 weights made in memory (--load-format dummy): the values `synth` would have
// written.
class DummySource : public TensorSource {
 public:
  // Refused when the weights need more than `available_bytes`.
  static Result<std::unique_ptr<DummySource>> Make(
      const ModelPlan& plan, uint64_t seed, ThreadPool& threads,
      int64_t available_bytes = AvailableMemoryBytes());
  // Of any list of tensors.
  static Result<std::unique_ptr<DummySource>> Make(
      const std::vector<TensorSpec>& specs, uint64_t seed, ThreadPool& threads,
      int64_t available_bytes = AvailableMemoryBytes());
  ~DummySource() override;
  Result<TensorView> Get(const TensorSpec& spec) const override;

 private:
  DummySource() = default;

  std::byte* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace lapidary
