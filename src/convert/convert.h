// Writes a model as one GGUF file, its matrices in a block format.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "load/model_directory.h"
#include "model/weights.h"

namespace lapidary {

struct ConvertedTensor {
  std::string name;  // in the file
  DType dtype;
  int64_t num_bytes = 0;
  // sqrt(sum of squared errors / sum of squares): 0 where nothing was rounded.
  double relative_error = 0.0;
};

// Matrices take the type that WeightPlan says, vectors become F32. Text comes from `model`'s
// directory, as far as it has any. Memory does not grow with the model; a file that could not be
// finished is removed. `head_bits` is that of WeightRequest.
Result<std::vector<ConvertedTensor>> ConvertToGguf(const ModelDescription& model,
                                                   const TensorSource& source, DType to,
                                                   const std::filesystem::path& out,
                                                   ThreadPool& threads, int head_bits = 0);

// A drafting assistant, whose head becomes a dense one, as other converters have it: `source` gives
// its rows in the order of the token ids.
Result<std::vector<ConvertedTensor>> ConvertToGguf(const AssistantPlan& plan,
                                                   const TensorSource& source, DType to,
                                                   const std::filesystem::path& out,
                                                   ThreadPool& threads, int head_bits = 0);

}  // namespace lapidary
