// What weights take in the CPU executor, before they are loaded.
#pragma once

#include <optional>

#include "load/model_directory.h"
#include "tensor/dtype.h"

namespace lapidary {

struct CpuWeights {
  int64_t num_bytes = 0;
  // Blocks, files of compressed-tensors, a head that is not the embeddings: no GPU kernel has them.
  bool cpu_only = false;
};

// Of the file, or of the preset's tensors in bf16, quantised as --quantization says.
Result<CpuWeights> MeasureCpuWeights(const ModelDescription& model,
                                     std::optional<DType> quantisation);

}  // namespace lapidary
