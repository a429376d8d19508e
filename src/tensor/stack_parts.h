// Matrices of their own, those of a layer's experts, as the rows of one: codes of floats and their
// scales are copied, nothing is computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "tensor/matrix_ref.h"

namespace lapidary {

// The format that holds the parts behind each other as they are; none where their formats or
// shapes differ. What a whole part shares, the one matrix has for as many rows as a part has;
// squares that end in the middle of a part become as many rows as the parts are whole ones of.
std::optional<WeightFormat> StackedFormat(std::span<const MatrixRef> parts);

// Rows [begin, end) of a part to the rows of `to`, a matrix of `to_rows` rows at `memory` as
// MatrixAt has it, behind `first_row`; with begin = 0 also the part's scales.
void StackPart(const MatrixRef& part, int64_t begin, int64_t end, const WeightFormat& to,
               int64_t first_row, int64_t to_rows, std::byte* memory);

}  // namespace lapidary
