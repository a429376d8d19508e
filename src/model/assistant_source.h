// The weights of an assistant, with the rows of an ordered head put in the order of its centroids:
// the tokens of one are then read in one piece.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "model/weights.h"

namespace lapidary {

class AssistantSource : public TensorSource {
 public:
  // A checkpoint directory, of compressed-tensors or plain; refused where a tensor is missing, of
  // another shape, or the ordering is no permutation.
  static Result<std::unique_ptr<AssistantSource>> Open(const std::filesystem::path& directory,
                                                       bool is_compressed,
                                                       const AssistantPlan& plan,
                                                       ThreadPool& threads);
  // An assistant with a dense head, from a file that was checked against its plan.
  static std::unique_ptr<AssistantSource> OfDense(std::shared_ptr<const TensorSource> file);
  // Made in memory: what `synth` would have written, in bf16.
  static Result<std::unique_ptr<AssistantSource>> MakeDummy(const AssistantPlan& plan,
                                                            uint64_t seed, ThreadPool& threads);

  Result<TensorView> Get(const TensorSpec& spec) const override;

  // Row i of the head is the token token_ordering()[i]. Empty: row i is token i.
  const std::vector<int32_t>& token_ordering() const { return token_ordering_; }

 private:
  explicit AssistantSource(std::shared_ptr<const TensorSource> file) : file_(std::move(file)) {}
  Status OrderHead(const AssistantPlan& plan, std::span<const int64_t> ordering);

  const std::shared_ptr<const TensorSource> file_;
  std::vector<int32_t> token_ordering_;
  std::vector<std::byte> ordered_rows_;
  TensorView ordered_head_;
};

}  // namespace lapidary
