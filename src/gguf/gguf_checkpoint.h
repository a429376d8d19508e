// A model in GGUF: one mapped file, or the parts of a split one.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/mapped_file.h"
#include "gguf/gguf_header.h"
#include "tensor/tensor_view.h"

namespace lapidary {

// Whether a path names a GGUF file, by its ending or its first bytes.
bool IsGgufFile(const std::filesystem::path& path);

// Owns the mappings; values and tensors are views into them.
class GgufCheckpoint {
 public:
  // Of a split file ("...-00002-of-00003.gguf") any part may be named; all must be there.
  static Result<GgufCheckpoint> Open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  // nullptr when absent.
  const GgufValue* Value(std::string_view key) const;
  const TensorView* Find(std::string_view name) const;
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }

  // One value of a kind that is not an array; none when it is absent or of another kind.
  std::optional<int64_t> Int(std::string_view key) const;
  std::optional<double> Number(std::string_view key) const;
  std::optional<std::string_view> String(std::string_view key) const;

 private:
  // Returns the part's metadata.
  Result<std::map<std::string, GgufValue, std::less<>>> AddFile(const std::filesystem::path& path);

  std::filesystem::path path_;
  std::vector<MappedFile> files_;
  std::map<std::string, GgufValue, std::less<>> metadata_;  // of the first part
  std::map<std::string, TensorView, std::less<>> tensors_;
};

}  // namespace lapidary
