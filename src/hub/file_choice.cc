#include "hub/file_choice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <regex>

#include "hub/lower_case.h"

namespace lapidary::hub {
namespace {

constexpr const char* kConfigFiles[] = {"config.json", "generation_config.json",
                                        "hf_quant_config.json"};
constexpr const char* kTextFiles[] = {"tokenizer.json", "tokenizer_config.json",
                                      "chat_template.jinja", "processor_config.json"};
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kWeightsFile = "model.safetensors";

// Of several GGUF files where no type was asked for: llama.cpp's first choice, then what is
// smallest and what is closest.
constexpr std::string_view kLikedTypes[] = {"q4_k_m", "q4_0", "q8_0"};
// Towers are small beside their model and lose by rounding.
constexpr std::string_view kLikedTowerTypes[] = {"bf16", "f16", "f32", "q8_0"};
constexpr std::string_view kLikedAssistantTypes[] = {"bf16", "f16", "q8_0"};
constexpr size_t kMostNamed = 12;  // files in a message

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool IsGguf(const std::string& path) { return path.ends_with(".gguf"); }

bool IsTowers(const std::string& path) {
  return IsGguf(path) && LowerCase(NameOf(path)).find("mmproj") != std::string::npos;
}

// What converters call the files of Gemma's assistants.
bool IsAssistant(const std::string& path) {
  const std::string name = LowerCase(NameOf(path));
  return IsGguf(path) && !IsTowers(path) &&
         (name.starts_with("mtp-") || name.find("assistant") != std::string::npos);
}

// Files that hold a model, by llama.cpp's rule: not what belongs to one.
bool IsModel(const std::string& path) {
  if (!IsGguf(path) || IsTowers(path) || IsAssistant(path)) return false;
  const std::string name = LowerCase(NameOf(path));
  for (const char* other : {"imatrix", "eagle3-", "dflash-", "dspark-"}) {
    if (name.find(other) != std::string::npos) return false;
  }
  return true;
}

// "x-Q4_K_M-00002-of-00003.gguf"
struct SplitName {
  std::string stem;  // "x-Q4_K_M"
  int part = 1;
  int num_parts = 1;
};
SplitName ParseSplitName(const std::string& path) {
  static const std::regex pattern(R"((.*)-(\d{5})-of-(\d{5})\.gguf)");
  std::smatch match;
  if (!std::regex_match(path, match, pattern)) {
    return {path.substr(0, path.size() - std::string_view(".gguf").size())};
  }
  return {match[1], std::stoi(match[2]), std::stoi(match[3])};
}

// Whether the name has the type as a word: "q4_0" of "gemma-4-E2B_q4_0-it" and "x-Q4_0.gguf", but
// not of "x-IQ4_0" or "x-Q4_0_8".
bool HasType(const std::string& path, std::string_view type) {
  const std::string name = LowerCase(NameOf(path));
  const std::string wanted = LowerCase(type);
  for (size_t at = name.find(wanted); at != std::string::npos; at = name.find(wanted, at + 1)) {
    const char before = at == 0 ? '-' : name[at - 1];
    const size_t end = at + wanted.size();
    const char after = end == name.size() ? '.' : name[end];
    if (std::isalnum(static_cast<unsigned char>(before)) == 0 && (after == '.' || after == '-')) {
      return true;
    }
  }
  return false;
}

using Files = std::vector<const RepoFile*>;

template <typename Types>
const RepoFile* Preferred(const Files& files, const Types& types) {
  for (const std::string_view type : types) {
    for (const RepoFile* file : files) {
      if (HasType(file->path, type)) return file;
    }
  }
  return files.empty() ? nullptr : files.front();
}

Files Select(const RepoListing& listing, bool (*is_wanted)(const std::string&)) {
  Files files;
  for (const RepoFile& file : listing.files) {
    if (is_wanted(file.path)) files.push_back(&file);
  }
  return files;
}

std::string Names(const Files& files) {
  std::vector<std::string> names;
  for (const RepoFile* file : files) {
    if (names.size() == kMostNamed) names.back() = "...";
    if (names.size() == kMostNamed) break;
    names.push_back(file->path);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

Status ChooseGguf(const RepoListing& listing, const FileWants& wants, const std::string& repo,
                  ChosenFiles& chosen) {
  Files models;  // the first parts
  for (const RepoFile* file : Select(listing, IsModel)) {
    if (ParseSplitName(file->path).part == 1) models.push_back(file);
  }
  if (!wants.quant.empty()) {
    Files fitting;
    for (const RepoFile* file : models) {
      if (HasType(file->path, wants.quant)) fitting.push_back(file);
    }
    if (fitting.empty()) {
      return MakeError("{} has no {} file; it has {}", repo, wants.quant, Names(models));
    }
    models = std::move(fitting);
  }
  const RepoFile* model = Preferred(models, kLikedTypes);
  const SplitName split = ParseSplitName(model->path);
  int num_found = 0;
  for (const RepoFile& file : listing.files) {
    if (!IsGguf(file.path)) continue;
    const SplitName other = ParseSplitName(file.path);
    if (other.stem != split.stem || other.num_parts != split.num_parts) continue;
    if (wants.weights) chosen.files.push_back(file);
    ++num_found;
  }
  if (num_found != split.num_parts) {
    return MakeError("{} has {} of the {} parts of {}", repo, num_found, split.num_parts,
                     model->path);
  }
  chosen.model = model->path;
  // Towers are looked for in the model's own folder.
  Files towers;
  for (const RepoFile* file : Select(listing, IsTowers)) {
    if (FolderOf(file->path) == FolderOf(model->path)) towers.push_back(file);
  }
  const RepoFile* tower = Preferred(towers, kLikedTowerTypes);
  if (wants.media && tower != nullptr) chosen.files.push_back(*tower);
  const RepoFile* assistant = Preferred(Select(listing, IsAssistant), kLikedAssistantTypes);
  if (wants.assistant && assistant != nullptr) {
    chosen.assistant = assistant->path;
    chosen.files.push_back(*assistant);
  }
  return {};
}

// "model-00001-of-00004.safetensors", as the index names them.
bool IsShard(const std::string& path) {
  static const std::regex pattern(R"(model-\d{5}-of-\d{5}\.safetensors)");
  return std::regex_match(path, pattern);
}

}  // namespace

Result<ChosenFiles> ChooseFiles(const RepoListing& listing, const FileWants& wants,
                                const std::string& repo) {
  ChosenFiles chosen;
  const RepoFile* index = listing.Find(kIndexFile);
  const RepoFile* whole = listing.Find(kWeightsFile);
  const bool has_safetensors =
      listing.Find("config.json") != nullptr && (index != nullptr || whole != nullptr);
  const bool has_gguf = !Select(listing, IsModel).empty();
  const bool asks_gguf = wants.takes_gguf || !wants.quant.empty();
  if (has_gguf && (asks_gguf || !has_safetensors)) {
    RETURN_IF_ERROR(ChooseGguf(listing, wants, repo, chosen));
  } else if (asks_gguf) {
    return MakeError("{} has no GGUF files: name it without {}", repo,
                     wants.quant.empty() ? "-hf" : ":" + wants.quant);
  } else if (!has_safetensors) {
    return MakeError("{} has neither model.safetensors beside a config.json nor a GGUF file", repo);
  } else {
    for (const char* name : kConfigFiles) {
      if (const RepoFile* file = listing.Find(name)) chosen.files.push_back(*file);
    }
    for (const char* name : kTextFiles) {
      const RepoFile* file = listing.Find(name);
      if (wants.text && file != nullptr) chosen.files.push_back(*file);
    }
    if (wants.weights && index == nullptr) chosen.files.push_back(*whole);
    if (wants.weights && index != nullptr) {
      chosen.files.push_back(*index);
      for (const RepoFile* file : Select(listing, IsShard)) chosen.files.push_back(*file);
    }
  }
  std::stable_sort(
      chosen.files.begin(), chosen.files.end(),
      [](const RepoFile& one, const RepoFile& other) { return one.num_bytes < other.num_bytes; });
  return chosen;
}

}  // namespace lapidary::hub
