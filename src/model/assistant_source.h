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
  // A checkpoint directory; refused where a tensor is missing, of another shape, or the ordering is
  // no permutation.
  static Result<std::unique_ptr<AssistantSource>> Open(const std::filesystem::path& directory,
                                                       const AssistantPlan& plan);
  // Made in memory: what `synth` would have written, in bf16.
  static Result<std::unique_ptr<AssistantSource>> MakeDummy(const AssistantPlan& plan,
                                                            uint64_t seed, ThreadPool& threads);

  Result<TensorView> Get(const TensorSpec& spec) const override;

  // Row i of the head is the token token_ordering()[i]. Empty: row i is token i.
  const std::vector<int32_t>& token_ordering() const { return token_ordering_; }

 private:
  AssistantSource() = default;
  Status OrderHead(const AssistantPlan& plan, std::span<const int64_t> ordering);

  std::unique_ptr<TensorSource> file_;
  std::vector<int32_t> token_ordering_;
  std::vector<std::byte> ordered_rows_;
  TensorView ordered_head_;
};

}  // namespace lapidary
