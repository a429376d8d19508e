// A model's weights with a LoRA adapter merged into them: W + scale * B A, in f32.
#pragma once

#include <memory>
#include <vector>

#include "adapter/adapter.h"
#include "base/thread_pool.h"
#include "model/weights.h"

namespace lapidary {

class MergedSource : public TensorSource {
 public:
  // `base` gives out tensors that ToFloats reads; `plan` and `threads` must outlive this.
  MergedSource(const ModelPlan& plan, std::shared_ptr<const TensorSource> base,
               std::shared_ptr<const Adapter> adapter, ThreadPool& threads)
      : plan_(plan), base_(std::move(base)), adapter_(std::move(adapter)), threads_(threads) {}

  // A matrix with a delta is made anew each time and is valid until the next one is: for one thread
  // that reads one tensor after another. Others are those of `base`.
  Result<TensorView> Get(const TensorSpec& spec) const override;
  // Of a matrix with a delta, its format and shape alone.
  Result<std::vector<MatrixRef>> GetStored(const TensorSpec& spec) const override;

 private:
  // What is added to rows of a matrix from `first_row` on.
  struct Addend {
    const LoraDelta* delta;
    int64_t first_row;
  };
  std::vector<Addend> AddendsOf(const TensorSpec& spec) const;

  const ModelPlan& plan_;
  const std::shared_ptr<const TensorSource> base_;
  const std::shared_ptr<const Adapter> adapter_;
  ThreadPool& threads_;
  mutable std::vector<float> merged_;
};

}  // namespace lapidary
