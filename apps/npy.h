// Writes NumPy .npy files row by row: float32, two dimensions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>

#include "base/result.h"

namespace lapidary {

class NpyWriter {
 public:
  // Writes the header of a [rows, columns] array; the data follows by Append.
  static Result<NpyWriter> Create(const std::filesystem::path& path, int64_t rows, int64_t columns);
  Status Append(std::span<const float> values);

 private:
  NpyWriter(std::filesystem::path path, std::ofstream file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace lapidary
