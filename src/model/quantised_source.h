// Weights of another source, quantised in memory while they are loaded.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "model/weights.h"

namespace lapidary {

// What a tensor of type `stored` becomes in a model quantised to `to` (CanQuantiseTo, or F8_E4M3:
// steps of that type, with a scale for each row, in bf16). Matrices take that type, but for the
// token embeddings, which are the head too and take Q8_0, beside F8_E4M3 their own, and rows that
// are no whole blocks of Q4_K, which take Q5_0; as they are stay the router, the projection of
// per-layer inputs, rows that are no whole blocks and what is quantised already.
DType QuantisedType(const TensorSpec& spec, DType stored, DType to);

// The per-layer embedding table, which is read by row, is left where it lies.
class QuantisedSource : public TensorSource {
 public:
  // Reads all of `source` once and keeps it alive. With `release_stored`, memory of what was
  // rounded goes back to the system: only where nobody else reads the source.
  static Result<std::unique_ptr<QuantisedSource>> Make(const ModelPlan& plan,
                                                       std::shared_ptr<const TensorSource> source,
                                                       DType to, ThreadPool& threads,
                                                       bool release_stored = false);
  Result<TensorView> Get(const TensorSpec& spec) const override;

 private:
  explicit QuantisedSource(std::shared_ptr<const TensorSource> source)
      : source_(std::move(source)) {}

  const std::shared_ptr<const TensorSource> source_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::map<std::string, TensorView, std::less<>> tensors_;  // the quantised ones
};

}  // namespace lapidary
