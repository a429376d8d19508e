// Writes what stands before the tensors' data in a GGUF file, version 3 (gguf_header.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/gguf_header.h"

namespace lapidary {

class GgufWriter {
 public:
  static constexpr uint64_t kAlignment = 32;

  void AddString(std::string_view key, std::string_view value);
  void AddU32(std::string_view key, uint32_t value);
  void AddF32(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddU32s(std::string_view key, std::span<const uint32_t> values);
  void AddI32s(std::string_view key, std::span<const int32_t> values);
  void AddF32s(std::string_view key, std::span<const float> values);
  void AddBools(std::string_view key, const std::vector<bool>& values);
  void AddStrings(std::string_view key, std::span<const std::string_view> values);

  // The data of a tensor begins where the one before ends, padded to the alignment. Returns the
  // offset from the start of the data.
  uint64_t AddTensor(std::string_view name, DType dtype, std::span<const int64_t> shape);

  // From the start of the file to the start of the data.
  std::string Header() const;
  uint64_t data_bytes() const { return data_bytes_; }

 private:
  void AddKey(std::string_view key, GgufType type);
  void AddArrayKey(std::string_view key, GgufType element, uint64_t count);

  std::string pairs_;
  std::string tensors_;
  uint64_t num_pairs_ = 0;
  uint64_t num_tensors_ = 0;
  uint64_t data_bytes_ = 0;
};

}  // namespace lapidary
