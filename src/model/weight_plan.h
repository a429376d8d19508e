// The format of every tensor of a model: as it is stored, and as it is kept in the memory that
// reads it. Decided here and nowhere else; memory plans, devices' storage, conversions while
// loading and the bytes that a step reads all follow it.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/plan.h"
#include "model/tensor_specs.h"
#include "model/weights.h"
#include "tensor/weight_format.h"

namespace lapidary {

// Who reads the weights.
enum class WeightReader {
  kCpu,
  kCpuIntegers,  // with --fast-math, from panels
  kGpu,
  kGgufFile,  // that `convert` writes
};

struct WeightRequest {
  WeightReader reader = WeightReader::kCpu;
  // --quantization: a type of CanQuantiseTo, or F8_E4M3 with a scale for each row.
  std::optional<DType> rounding = {};
  // --head-bits: 4, 6, 8 or 16 of the matrix that gives the logits, the token embeddings where they
  // are the head too. 0: 8 where others are rounded (not to F8_E4M3), else as stored.
  int head_bits = 0;
  // kGpu: matrices whose format has kernels keep it; else all become bf16.
  bool keeps_formats = true;
  // On the CPU FP8 and NVFP4 become bf16: for who reads no others, and in files always.
  bool rounds_float_codes = false;
};

struct PlannedWeight {
  TensorSpec spec;
  WeightFormat
      stored{};  // of its first rows, where they differ; BF16 of weights that are not there
  WeightFormat loaded{};
  // Values change on the way: rounded to this type (RoundRows, RoundRowsToFloat8).
  std::optional<DType> rounding = {};
  int64_t stored_bytes = 0;
  int64_t loaded_bytes = 0;

  bool is_matrix() const { return spec.shape.size() > 1; }
  int64_t cols() const { return spec.shape.back(); }
  int64_t rows() const { return spec.num_elements() / cols(); }
  // Loading has more to do than to point at what is stored.
  bool is_converted = false;
};

class WeightPlan {
 public:
  // `source`: null for weights that will be made, in bf16 or what they are rounded to. Refused, in
  // a sentence that ends where the advice follows, where the reader cannot round to the type.
  static Result<WeightPlan> Make(const std::vector<TensorSpec>& specs, const TensorSource* source,
                                 const WeightRequest& request);
  // Of weights that will be made, with nothing to be refused.
  static WeightPlan OfDummies(const std::vector<TensorSpec>& specs, WeightReader reader);

  std::span<const PlannedWeight> weights() const { return weights_; }
  const PlannedWeight& Of(const TensorSpec& spec) const;
  // Of all tensors in the reader's memory.
  int64_t loaded_bytes() const;
  bool converts_any() const;
  // Whether any matrix has fewer bits than bf16 in the reader's memory.
  bool is_quantised() const;
  // "1.03 GB as W4 F16/32, 5.20 GB as BF16 (0.33 GB of it stored as Q6_K)".
  std::string Summary() const;

 private:
  std::vector<PlannedWeight> weights_;
  std::map<std::string, size_t, std::less<>> index_;  // by name
};

// What a GPU asks of an assistant's weights beside those of its target: a dense head and its layers
// keep their formats, and take 8 bits where the target is quantised. Kernels for ordered heads read
// bf16; their assistants are so small that fewer bits would save nothing.
WeightRequest RequestOfDrafter(const AssistantPlan& assistant, const WeightPlan& target);

}  // namespace lapidary
