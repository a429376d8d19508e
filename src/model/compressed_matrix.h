// One matrix as the compressed-tensors library or modelopt stores it (compressed_source.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/tensor_view.h"

namespace lapidary {

// Views, and what they were found to mean. Made by FindCompressed; every size is checked there.
struct CompressedMatrix {
  enum class Codes { kPacked4, kPacked8, kInt8, kFloat8, kFloat4 };

  Codes codes_kind = Codes::kPacked4;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* codes = nullptr;
  int64_t code_row_bytes = 0;
  const int32_t* zeros = nullptr;  // [rows * bits / 32, scale_cols]; null: the middle code
  std::vector<float> scales;       // [ceil(rows / rows_per_scale), scale_cols]
  int64_t scale_cols = 1;
  int64_t rows_per_scale = 1;
  int64_t cols_per_scale = 1;

  float Scale(int64_t row, int64_t col) const {
    return scales[row / rows_per_scale * scale_cols + col / cols_per_scale];
  }
  // The code less its zero; of anything but kFloat8 and kFloat4.
  int Step(int64_t row, int64_t col) const;
  // What the code of these two stands for.
  float Float(int64_t row, int64_t col) const;
  // A block type that holds every value exactly, or F32; BF16 for kFloat8 and kFloat4.
  DType RepackedType() const;
  // Row `row` in that type, or in F32.
  void Repack(int64_t row, DType to, std::byte* out) const;

 private:
  // Rounded to bf16 as the library does it.
  void RepackFloats(int64_t row, DType to, std::byte* out) const;
};

// Looks tensors of a checkpoint up by name; null: there is none.
using FindTensor = std::function<const TensorView*(const std::string& name)>;

// The matrix [rows, cols] of `module`; an error names the tensor that is missing or wrong.
Result<CompressedMatrix> FindCompressed(const FindTensor& find, const std::string& module,
                                        int64_t rows, int64_t cols);

}  // namespace lapidary
