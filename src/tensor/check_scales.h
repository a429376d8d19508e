// Scales that a file may hold and no quantiser writes: a matrix with one of them would give tokens
// out of nothing.
#pragma once

#include <optional>
#include <string>

#include "tensor/matrix_ref.h"

namespace lapidary {

// What is wrong with a plane of scales of their own (has_scale_plane), or with what a whole tensor
// is scaled by; none: nothing.
struct BadScale {
  bool is_of_tensor = false;
  std::string problem;  // "[3, 0] is -0.5: a scale is a number, finite and not negative"
};

// A scale is a number, finite and not negative, and no weight is infinite by it. Zeros stand for
// groups of zeros; a plane of nothing else was never filled, and nothing is divided by zero.
std::optional<BadScale> FindBadScale(const MatrixRef& matrix);

}  // namespace lapidary
