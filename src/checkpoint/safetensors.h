// The safetensors format: 8 bytes header length (little endian), a JSON header, then the data.
//
//   {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__":
//   {}}
//
// A file is untrusted: the header is checked for length, types, overflow, shape against bytes,
// order, overlap and holes before any tensor can be reached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/tensor_view.h"

namespace lapidary {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // byte range from the start of the file
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in data order
  std::map<std::string, std::string> metadata;
};

// `file` is the whole file; `name` begins the messages.
Result<SafetensorsHeader> ParseSafetensors(std::span<const std::byte> file, std::string_view name);

// Writes headers for a list of (name, dtype, shape) laid out one after the other; begin and end are
// filled in. Returns the bytes that precede the data.
std::string MakeSafetensorsHeader(std::vector<SafetensorsEntry>& entries,
                                  const std::map<std::string, std::string>& metadata);

}  // namespace lapidary
