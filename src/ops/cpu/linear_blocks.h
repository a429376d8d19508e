// Products of a few rows with block formats, whose weights are unpacked in registers: what they
// cost beside the memory's time counts most where each weight is used once.
#pragma once

#include <cstdint>

#include "tensor/matrix_ref.h"

namespace lapidary::cpu {

// More rows are better served by weights that are unpacked into the cache first. 0: so is any
// number, on this machine.
int64_t MaxRowsInRegisters();

// Columns [begin, end) of y = x * w^T, on the calling thread; x [rows, in], at most
// MaxRowsInRegisters() rows. The chain of operations behind a value is Linear's with the floats
// that the blocks stand for.
void LinearInRegisters(const float* x, int64_t rows, const MatrixRef& w, int64_t begin, int64_t end,
                       float* y, int64_t y_stride);

}  // namespace lapidary::cpu
