// The tensors of one rank: views of the whole model's where their rows lie together, copies where
// they do not, in the formats in which they are stored.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "model/shard.h"
#include "model/weights.h"
#include "tensor/matrix_cut.h"

namespace lapidary {

class ShardSource : public TensorSource {
 public:
  // `cuts` of Shard or AssistantShard, checked against how `whole` stores its tensors.
  static Result<std::unique_ptr<ShardSource>> Make(const std::vector<TensorCut>& cuts,
                                                   std::shared_ptr<const TensorSource> whole,
                                                   ThreadPool& threads);

  // Specs are those of the rank's plan.
  Result<TensorView> Get(const TensorSpec& spec) const override;
  Result<std::vector<MatrixRef>> GetStored(const TensorSpec& spec) const override;

  // That are no views.
  int64_t copied_bytes() const { return copied_bytes_; }

 private:
  explicit ShardSource(std::shared_ptr<const TensorSource> whole) : whole_(std::move(whole)) {}
  Status Add(const TensorCut& cut, ThreadPool& threads);

  struct Tensor {
    TensorSpec whole;
    std::vector<MatrixRef> parts;  // empty: the whole
  };

  const std::shared_ptr<const TensorSource> whole_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::vector<MatrixCopy> copies_;
  int64_t copied_bytes_ = 0;
};

}  // namespace lapidary
