// Checkpoints of the compressed-tensors library and of modelopt, as they are stored.
//
// A quantised matrix [rows, cols] is the tensors of a module (`layers.0.mlp.up_proj`):
//
//   weight_packed  I32 [rows, cols * bits / 32]: codes of 4 or 8 bits, the first one lowest
//   weight         I8 or F8_E4M3 [rows, cols] instead
//   weight_scale   bf16, f16 or f32 [rows, groups], or for F8_E4M3 one, or one per square of 128
//   weight_zero_point  I32 [rows * bits / 32, groups], packed along the rows; 8 or 128 without
//
// w = (code - zero) * scale. Or, NVFP4:
//
//   weight_packed, modelopt: weight   U8 [rows, cols / 2]: E2M1, the first one lowest
//   weight_scale                      F8_E4M3 [rows, cols / 16]
//   weight_global_scale, modelopt: weight_scale_2   F32 [1]
//
// w = code * (scale / global scale), or times scale_2. What the file holds decides, not the targets
// and ignore lists of config.json: a module that was left alone has a `weight` of a type that is no
// quantised one. Activations are not rounded, whatever the file advises.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/weights.h"

namespace lapidary {

class CompressedSource : public TensorSource {
 public:
  // Everything is checked against the plan, as CheckpointSource does it.
  static Result<std::unique_ptr<CompressedSource>> Open(const std::filesystem::path& directory,
                                                        const ModelPlan& plan);
  static Result<std::unique_ptr<CompressedSource>> Open(const std::filesystem::path& directory,
                                                        const AssistantPlan& plan);
  const Checkpoint& checkpoint() const { return checkpoint_; }
  // An error for a matrix with scales of its own: that one is GetStored, and read when it has been
  // converted (converted_source.h).
  Result<TensorView> Get(const TensorSpec& spec) const override;
  Result<std::vector<MatrixRef>> GetStored(const TensorSpec& spec) const override;

 private:
  explicit CompressedSource(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}
  // `unused`: what may be there as well.
  Status Check(const std::vector<TensorSpec>& required, const std::vector<std::string>& unused,
               const std::string& where);

  Checkpoint checkpoint_;
  std::map<std::string, TensorView, std::less<>> plain_;  // by the plan's name
  std::map<std::string, std::vector<MatrixRef>, std::less<>> quantised_;
};

}  // namespace lapidary
