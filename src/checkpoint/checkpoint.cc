#include "checkpoint/checkpoint.h"

#include <cstring>
#include <set>

#include "base/json_fields.h"
#include "base/read_file.h"

namespace lapidary {
namespace {

constexpr size_t kMaxIndexBytes = size_t{64} << 20;

// {"weight_map": {"tensor": "model-00001-of-00002.safetensors", ...}}
Result<std::map<std::string, std::string>> ReadIndex(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxIndexBytes));
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, path.string()));
  JsonFields fields(json, path.string());
  const Json* weight_map = fields.OptionalObject("weight_map");
  RETURN_IF_ERROR(fields.status());
  if (weight_map == nullptr || weight_map->empty()) {
    return MakeError("{}: weight_map is missing or empty", path.string());
  }
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : weight_map->items()) {
    const std::string file = shard.is_string() ? shard.get<std::string>() : "";
    // A shard lies beside its index: no separators, so no way out of the directory.
    if (file.empty() || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos) {
      return MakeError("{}: tensor '{}' names no plain file", path.string(), tensor.substr(0, 120));
    }
    shards[tensor] = file;
  }
  return shards;
}

}  // namespace

std::string_view StripTensorPrefix(std::string_view name) {
  for (std::string_view prefix : {"model.language_model.", "language_model.model.", "model."}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

bool IsTowerTensor(std::string_view stripped_name) {
  for (std::string_view prefix : {"vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.",
                                  "vision_embedder.", "multi_modal_projector."}) {
    if (stripped_name.starts_with(prefix)) return true;
  }
  return false;
}

Result<Checkpoint> Checkpoint::Open(const std::filesystem::path& directory) {
  Checkpoint checkpoint;
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return MakeError("{} is not a directory that can be read", directory.string());
  }
  const auto index_path = directory / "model.safetensors.index.json";
  const auto single_path = directory / "model.safetensors";
  if (std::filesystem::exists(index_path, error)) {
    ASSIGN_OR_RETURN(const auto index, ReadIndex(index_path));
    std::set<std::string> shards;
    for (const auto& [tensor, shard] : index) shards.insert(shard);
    for (const std::string& shard : shards) {
      RETURN_IF_ERROR(checkpoint.AddFile(directory / shard, &index, shard));
    }
    for (const auto& [tensor, shard] : index) {
      if (checkpoint.Find(StripTensorPrefix(tensor)) == nullptr) {
        return MakeError("{}: tensor '{}' is not in its shard {}", index_path.string(),
                         tensor.substr(0, 120), shard);
      }
    }
    return checkpoint;
  }
  if (!std::filesystem::exists(single_path, error)) {
    return MakeError("{} holds no model.safetensors and no model.safetensors.index.json",
                     directory.string());
  }
  RETURN_IF_ERROR(checkpoint.AddFile(single_path, nullptr, ""));
  return checkpoint;
}

Status Checkpoint::AddFile(const std::filesystem::path& path,
                           const std::map<std::string, std::string>* index,
                           const std::string& shard_name) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensors(file.bytes(), path.string()));
  for (SafetensorsEntry& entry : header.entries) {
    if (index != nullptr) {
      const auto it = index->find(entry.name);
      if (it == index->end() || it->second != shard_name) {
        return MakeError("{}: tensor '{}' is not listed for this shard in the index", path.string(),
                         entry.name.substr(0, 120));
      }
    }
    TensorView view{file.bytes().data() + entry.begin, entry.dtype, std::move(entry.shape)};
    if (reinterpret_cast<uintptr_t>(view.data) % DTypeSize(view.dtype) != 0) {
      auto copy = std::make_unique<std::byte[]>(view.num_bytes());
      std::memcpy(copy.get(), view.data, view.num_bytes());
      view.data = copy.get();
      realigned_.push_back(std::move(copy));
    }
    const std::string name(StripTensorPrefix(entry.name));
    if (!tensors_.emplace(name, std::move(view)).second) {
      return MakeError("{}: tensor '{}' is there more than once", path.string(),
                       name.substr(0, 120));
    }
  }
  files_.push_back(std::move(file));
  return {};
}

const TensorView* Checkpoint::Find(std::string_view stripped_name) const {
  const auto it = tensors_.find(stripped_name);
  return it == tensors_.end() ? nullptr : &it->second;
}

}  // namespace lapidary
