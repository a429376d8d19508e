// Weights of another source in the formats of a plan, made in memory while they are loaded:
// repacked, or rounded as --quantization says.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "model/weight_plan.h"
#include "model/weights.h"

namespace lapidary {

// Tensors that the plan does not convert are handed out as the other source has them.
class ConvertedSource : public TensorSource {
 public:
  // Of a plan for the CPU made from `source`, which is kept alive. Reads what is converted once;
  // with `release_stored` its memory goes back to the system: only where nobody else reads it. An
  // error where there is too little memory.
  static Result<std::unique_ptr<ConvertedSource>> Make(const WeightPlan& plan,
                                                       std::shared_ptr<const TensorSource> source,
                                                       ThreadPool& threads, bool release_stored);
  // `source` itself where the plan converts nothing.
  static Result<std::shared_ptr<const TensorSource>> Wrap(
      const WeightPlan& plan, std::shared_ptr<const TensorSource> source, ThreadPool& threads,
      bool release_stored);

  // An error for a matrix whose scales lie apart: that one is GetStored.
  Result<TensorView> Get(const TensorSpec& spec) const override;
  Result<std::vector<MatrixRef>> GetStored(const TensorSpec& spec) const override;

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  explicit ConvertedSource(std::shared_ptr<const TensorSource> source)
      : source_(std::move(source)) {}
  Status Convert(const WeightPlan& plan, ThreadPool& threads, bool release_stored);

  const std::shared_ptr<const TensorSource> source_;
  // Of one piece, so that all of it can be in huge pages.
  std::unique_ptr<std::byte[], Free> memory_;
  std::map<std::string, MatrixRef, std::less<>> converted_;
};

// `stored` in the formats of a plan for the CPU; what was converted is read by nobody else.
Result<std::shared_ptr<const TensorSource>> ConvertForCpu(
    const std::vector<TensorSpec>& specs, std::shared_ptr<const TensorSource> stored,
    const WeightRequest& request, ThreadPool& threads);

}  // namespace lapidary
