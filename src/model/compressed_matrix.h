// One matrix as the compressed-tensors library or modelopt stores it (compressed_source.h).
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "tensor/matrix_ref.h"
#include "tensor/tensor_view.h"

namespace lapidary {

// Looks tensors of a checkpoint up by name; null: there is none.
using FindTensor = std::function<const TensorView*(const std::string& name)>;

// The matrix [rows, cols] of `module`: its codes, scales and zero points where the checkpoint has
// them, or a weight that was left as it is. Every size and every scale is checked; an error names
// the tensor that is missing, wrong or not matched.
Result<MatrixRef> FindCompressed(const FindTensor& find, const std::string& module, int rows,
                                 int cols);

}  // namespace lapidary
