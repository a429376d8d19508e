// A model directory's weights: one or many safetensors files, mapped, found by name.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors.h"

namespace lapidary {

// Cuts "model.language_model.", "language_model.model." or "model." off a tensor's name.
std::string_view StripTensorPrefix(std::string_view name);

// Vision and audio towers and their projectors: never touched for text.
bool IsTowerTensor(std::string_view stripped_name);

// Owns the mappings; tensors are views into them (or into a copy, for a file whose data is not
// aligned).
class Checkpoint {
 public:
  // Reads model.safetensors.index.json with its shards, or model.safetensors.
  static Result<Checkpoint> Open(const std::filesystem::path& directory);

  // By stripped name; nullptr when absent.
  const TensorView* Find(std::string_view stripped_name) const;

  // Stripped name -> view, towers included.
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }

 private:
  Status AddFile(const std::filesystem::path& path, const std::map<std::string, std::string>* index,
                 const std::string& shard_name);

  std::vector<MappedFile> files_;
  std::vector<std::unique_ptr<std::byte[]>> realigned_;
  std::map<std::string, TensorView, std::less<>> tensors_;
};

}  // namespace lapidary
