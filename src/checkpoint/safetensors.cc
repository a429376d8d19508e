#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/json_fields.h"

namespace lapidary {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = uint64_t{100} << 20;  // as the reference implementation
constexpr int kMaxDims = 8;
constexpr int kMaxDepth = 4;  // header, tensor, shape, and one more that __metadata__ may misuse

std::string Shown(const std::string& name) { return ShortUtf8(name, 120); }

// Product of the dims times the element size, or nothing where it passes what TensorView counts in
// (a zero behind huge dims does not save it).
std::optional<uint64_t> TensorBytes(const std::vector<int64_t>& shape, DType dtype) {
  int64_t bytes = DTypeSize(dtype);
  for (int64_t dim : shape) {
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

Result<SafetensorsEntry> ParseEntry(const std::string& tensor, const Json& json,
                                    std::string_view file) {
  const std::string where = fmt::format("{}: tensor '{}'", file, Shown(tensor));
  SafetensorsEntry entry;
  entry.name = tensor;
  JsonFields fields(json, where);
  const std::string dtype_name = fields.StringOr("dtype", "");
  RETURN_IF_ERROR(fields.status());
  const std::optional<DType> dtype = ParseDType(dtype_name);
  if (!dtype) return MakeError("{}: unknown dtype '{}'", where, Shown(dtype_name));
  entry.dtype = *dtype;

  const auto shape = json.find("shape");
  if (shape == json.end() || !shape->is_array() || shape->size() > kMaxDims) {
    return MakeError("{}: shape must be a list of at most {} numbers", where, kMaxDims);
  }
  for (const Json& dim : *shape) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > uint64_t{INT64_MAX}) {
      return MakeError("{}: shape holds something that is not a count", where);
    }
    entry.shape.push_back(dim.get<int64_t>());
  }
  const auto offsets = json.find("data_offsets");
  if (offsets == json.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return MakeError("{}: data_offsets must be two counts", where);
  }
  entry.begin = (*offsets)[0].get<uint64_t>();
  entry.end = (*offsets)[1].get<uint64_t>();
  const std::optional<uint64_t> bytes = TensorBytes(entry.shape, entry.dtype);
  if (!bytes || entry.end < entry.begin || entry.end - entry.begin != *bytes) {
    return MakeError("{}: {} {} does not fill data_offsets [{}, {}]", where, DTypeName(entry.dtype),
                     ShapeToString(entry.shape), entry.begin, entry.end);
  }
  return entry;
}

}  // namespace

Result<SafetensorsHeader> ParseSafetensors(std::span<const std::byte> file, std::string_view name) {
  if (file.size() < kLengthBytes) {
    return MakeError("{}: {} bytes are too few for a safetensors file", name, file.size());
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - kLengthBytes) {
    return MakeError("{}: header length {} does not fit a file of {} bytes (truncated?)", name,
                     header_bytes, file.size());
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                              header_bytes);
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, fmt::format("{}: safetensors header", name),
                                              {.max_depth = kMaxDepth, .unique_names = true}));
  if (!json.is_object()) {
    return MakeError("{}: the safetensors header is not an object of tensors", name);
  }

  SafetensorsHeader header;
  for (const auto& [key, value] : json.items()) {
    if (key == "__metadata__") {
      if (!value.is_object()) return MakeError("{}: __metadata__ is not an object", name);
      for (const auto& [meta_key, meta_value] : value.items()) {
        if (meta_value.is_string()) header.metadata[meta_key] = meta_value.get<std::string>();
      }
      continue;
    }
    ASSIGN_OR_RETURN(SafetensorsEntry entry, ParseEntry(key, value, name));
    header.entries.push_back(std::move(entry));
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  const uint64_t data_start = kLengthBytes + header_bytes;
  uint64_t expected_begin = 0;
  for (SafetensorsEntry& entry : header.entries) {
    if (entry.begin != expected_begin) {
      return MakeError("{}: tensor '{}' begins at {}, expected {} ({})", name, Shown(entry.name),
                       entry.begin, expected_begin,
                       entry.begin < expected_begin ? "tensors overlap" : "hole in the data");
    }
    expected_begin = entry.end;
    if (entry.end > file.size() - data_start) {
      return MakeError("{}: tensor '{}' ends {} bytes past the end of the file (truncated?)", name,
                       Shown(entry.name), entry.end - (file.size() - data_start));
    }
    entry.begin += data_start;
    entry.end += data_start;
  }
  if (expected_begin != file.size() - data_start) {
    return MakeError("{}: {} bytes after the last tensor", name,
                     file.size() - data_start - expected_begin);
  }
  return header;
}

std::string MakeSafetensorsHeader(std::vector<SafetensorsEntry>& entries,
                                  const std::map<std::string, std::string>& metadata) {
  Json json = Json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (SafetensorsEntry& entry : entries) {
    entry.begin = offset;
    offset += *TensorBytes(entry.shape, entry.dtype);
    entry.end = offset;
    json[entry.name] = {{"dtype", DTypeName(entry.dtype)},
                        {"shape", entry.shape},
                        {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // The data starts aligned.
  const uint64_t header_bytes = text.size();
  std::string header(kLengthBytes, '\0');
  std::memcpy(header.data(), &header_bytes, kLengthBytes);
  header += text;
  for (SafetensorsEntry& entry : entries) {
    entry.begin += header.size();
    entry.end += header.size();
  }
  return header;
}

}  // namespace lapidary
