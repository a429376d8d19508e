// The GGUF format, versions 2 and 3, little endian: what stands before the tensors' data.
//
//   "GGUF", version u32, number of tensors u64, number of metadata pairs u64
//   pairs:    key string, type u32, value          (string: length u64, bytes)
//   tensors:  name string, number of dims u32, dims u64 (fastest first), type u32, offset u64
//   padding to `general.alignment`, then the data, to whose start offsets are relative
//
// A file is untrusted: every count, length, type, dim, offset, overlap and end is checked before a
// value or tensor can be reached, and nothing is allocated that the file's size does not pay for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"

namespace lapidary {

enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// A metadata value: a view of its checked bytes in the file.
class GgufValue {
 public:
  GgufValue() = default;
  // `element`: of an array, else the type itself.
  GgufValue(GgufType type, GgufType element, uint64_t count, std::span<const std::byte> bytes)
      : type_(type), element_(element), count_(count), bytes_(bytes) {}

  bool is_array() const { return type_ == GgufType::kArray; }
  uint64_t size() const { return count_; }  // of an array; 1 of a scalar

  // The value, or every element of an array; none where the type is another.
  std::optional<std::vector<int64_t>> Ints() const;  // integers and bools
  std::optional<std::vector<double>> Numbers() const;
  std::optional<std::vector<std::string_view>> Strings() const;

 private:
  GgufType type_ = GgufType::kU8;
  GgufType element_ = GgufType::kU8;
  uint64_t count_ = 0;
  std::span<const std::byte> bytes_;
};

struct GgufTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // slowest first, as TensorView has it
  uint64_t begin = 0;          // byte range from the start of the file
  uint64_t end = 0;
};

struct GgufHeader {
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<GgufTensor> tensors;  // in data order
};

// The number by which tensors name a type; it must be one the reader knows.
uint32_t GgufTypeId(DType dtype);

// `file` is the whole file, and must outlive the values; `name` begins the messages.
Result<GgufHeader> ParseGguf(std::span<const std::byte> file, std::string_view name);

}  // namespace lapidary
