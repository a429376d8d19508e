// The weights of a plan in a GGUF file.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gguf/gguf_checkpoint.h"
#include "model/weights.h"

namespace lapidary {

// Checked against the plan: every required tensor present in its shape and a type that can be used,
// and nothing in the file that the plan cannot explain.
class GgufSource : public TensorSource {
 public:
  static Result<std::unique_ptr<GgufSource>> Open(GgufCheckpoint checkpoint, const ModelPlan& plan);
  static Result<std::unique_ptr<GgufSource>> Open(GgufCheckpoint checkpoint,
                                                  const AssistantPlan& plan);
  Result<TensorView> Get(const TensorSpec& spec) const override;

 private:
  explicit GgufSource(GgufCheckpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}
  // `unused`: what may be there as well.
  Status Check(const std::vector<TensorSpec>& required, std::set<std::string, std::less<>> unused);
  Status CheckTensor(const TensorSpec& spec);
  // Some files have the two halves of experts.gate_up_proj as tensors of their own.
  Status JoinExperts(const TensorSpec& spec);

  GgufCheckpoint checkpoint_;
  std::vector<std::unique_ptr<std::byte[]>> joined_;
  std::map<std::string, TensorView, std::less<>> tensors_;  // by the plan's name
};

}  // namespace lapidary
