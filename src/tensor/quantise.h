// Floats to block formats.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace lapidary {

inline bool CanQuantiseTo(DType dtype) { return dtype == DType::kQ4_0 || dtype == DType::kQ8_0; }

// Whole blocks of values, rounded to nearest as the `gguf` package of PyPI does it, bit for bit.
void Quantise(const float* values, int64_t num_elements, DType dtype, void* blocks);

}  // namespace lapidary
