// Floats to block formats.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace lapidary {

// Q4_0, Q5_0, Q8_0, Q4_K and Q6_K.
bool CanQuantiseTo(DType dtype);

// Whole blocks of values. All but Q4_K and Q6_K are rounded to nearest as the `gguf` package of
// PyPI does it, bit for bit; that package has none of the two, for which quantise_k.h seeks scales.
void Quantise(const float* values, int64_t num_elements, DType dtype, void* blocks);

}  // namespace lapidary
