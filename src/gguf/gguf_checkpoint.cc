#include "gguf/gguf_checkpoint.h"

#include <cstring>
#include <fstream>
#include <regex>

namespace lapidary {
namespace {

using Metadata = std::map<std::string, GgufValue, std::less<>>;

constexpr int kMaxParts = 1000;

std::optional<int64_t> IntOf(const Metadata& metadata, std::string_view key) {
  const auto it = metadata.find(key);
  if (it == metadata.end() || it->second.is_array()) return std::nullopt;
  const auto values = it->second.Ints();
  return values ? std::optional(values->front()) : std::nullopt;
}

struct SplitName {
  std::string prefix;
  int count = 1;

  std::filesystem::path Part(const std::filesystem::path& beside, int part) const {
    return beside.parent_path() / fmt::format("{}-{:05}-of-{:05}.gguf", prefix, part + 1, count);
  }
};

std::optional<SplitName> ParseSplitName(const std::filesystem::path& path) {
  static const std::regex pattern(R"((.*)-(\d{5})-of-(\d{5})\.gguf)");
  std::smatch match;
  const std::string name = path.filename().string();
  if (!std::regex_match(name, match, pattern)) return std::nullopt;
  return SplitName{match[1], std::stoi(match[3])};
}

}  // namespace

bool IsGgufFile(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  if (path.extension() == ".gguf") return true;
  char magic[4] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof(magic));
  return std::memcmp(magic, "GGUF", sizeof(magic)) == 0;
}

Result<Metadata> GgufCheckpoint::AddFile(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  ASSIGN_OR_RETURN(GgufHeader header, ParseGguf(file.bytes(), path.string()));
  for (GgufTensor& tensor : header.tensors) {
    TensorView view{file.bytes().data() + tensor.begin, tensor.dtype, std::move(tensor.shape)};
    if (!tensors_.emplace(tensor.name, std::move(view)).second) {
      return MakeError("{}: tensor '{}' is there more than once", path.string(), tensor.name);
    }
  }
  files_.push_back(std::move(file));
  return std::move(header.metadata);
}

Result<GgufCheckpoint> GgufCheckpoint::Open(const std::filesystem::path& path) {
  GgufCheckpoint checkpoint;
  checkpoint.path_ = path;
  const auto split = ParseSplitName(path);
  const std::filesystem::path first = split ? split->Part(path, 0) : path;
  ASSIGN_OR_RETURN(checkpoint.metadata_, checkpoint.AddFile(first));
  const int64_t num_parts = IntOf(checkpoint.metadata_, "split.count").value_or(1);
  if (num_parts <= 1) return checkpoint;
  if (num_parts > kMaxParts || !split || split->count != num_parts) {
    return MakeError("{}: is one of {} parts, which must be named ...-00001-of-{:05}.gguf",
                     first.string(), num_parts, num_parts);
  }
  for (int part = 1; part < num_parts; ++part) {
    const std::filesystem::path part_path = split->Part(path, part);
    std::error_code error;
    if (!std::filesystem::exists(part_path, error)) {
      return MakeError("{} is missing: all {} parts must lie beside each other", part_path.string(),
                       num_parts);
    }
    ASSIGN_OR_RETURN(const Metadata metadata, checkpoint.AddFile(part_path));
    if (IntOf(metadata, "split.no") != part || IntOf(metadata, "split.count") != num_parts) {
      return MakeError("{}: does not say that it is part {} of {}", part_path.string(), part + 1,
                       num_parts);
    }
  }
  const int64_t num_tensors = static_cast<int64_t>(checkpoint.tensors_.size());
  const auto wanted = IntOf(checkpoint.metadata_, "split.tensors.count");
  if (wanted && *wanted != num_tensors) {
    return MakeError("{}: the parts hold {} tensors, split.tensors.count says {}", first.string(),
                     num_tensors, *wanted);
  }
  return checkpoint;
}

const GgufValue* GgufCheckpoint::Value(std::string_view key) const {
  const auto it = metadata_.find(key);
  return it == metadata_.end() ? nullptr : &it->second;
}

const TensorView* GgufCheckpoint::Find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

std::optional<int64_t> GgufCheckpoint::Int(std::string_view key) const {
  return IntOf(metadata_, key);
}

std::optional<double> GgufCheckpoint::Number(std::string_view key) const {
  const GgufValue* value = Value(key);
  if (value == nullptr || value->is_array()) return std::nullopt;
  const auto values = value->Numbers();
  return values ? std::optional(values->front()) : std::nullopt;
}

std::optional<std::string_view> GgufCheckpoint::String(std::string_view key) const {
  const GgufValue* value = Value(key);
  if (value == nullptr || value->is_array()) return std::nullopt;
  const auto values = value->Strings();
  return values ? std::optional(values->front()) : std::nullopt;
}

}  // namespace lapidary
