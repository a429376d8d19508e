// `lapidary pull`, `list` and `rm`: models of the Hugging Face Hub in the cache of this machine.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>

#include "apps/commands.h"
#include "apps/named_models.h"
#include "hub/cache_contents.h"
#include "hub/hub_settings.h"
#include "hub/model_name.h"

namespace lapidary {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kNameHelp =
    "OWNER/NAME, OWNER/NAME:QUANT or a short name (e2b e4b 12b 26b-a4b 31b, e4b:q4_0)";

struct PullFlags {
  std::string name;
  bool no_media = false;
  DraftFlags drafting;
};

Status Pull(PullFlags& flags) {
  ASSIGN_OR_RETURN(const auto name, hub::ParseModelName(flags.name));
  if (!name) {
    return MakeError(
        "'{}' is no model's name: OWNER/NAME as on the Hub, or a short one such as e4b",
        flags.name);
  }
  const ModelNeeds needs{.media = !flags.no_media, .drafting = &flags.drafting};
  std::string path = flags.name;
  ASSIGN_OR_RETURN(const auto found, FindModel(&path, needs));
  if (!found) return MakeError("'{}' is a path here: there is nothing to fetch", flags.name);
  fmt::print("{}\n", path);
  return {};
}

std::string Size(int64_t num_bytes) {
  return fmt::format("{:.2f} GB", 1e-9 * static_cast<double>(num_bytes));
}

Status List(bool as_json) {
  ASSIGN_OR_RETURN(const hub::HubSettings settings, hub::HubSettings::FromEnvironment());
  const std::vector<hub::CachedModel> models = hub::ListCache(settings.cache);
  if (as_json) {
    OrderedJson list = OrderedJson::array();
    for (const hub::CachedModel& model : models) {
      list.push_back({{"name", model.repo},
                      {"bytes", model.num_bytes},
                      {"partial_bytes", model.num_partial_bytes},
                      {"revisions", model.revisions},
                      {"path", model.folder.string()}});
    }
    fmt::print("{}\n", list.dump());
    return {};
  }
  if (models.empty()) fmt::print(stderr, "no models in {}\n", settings.cache.string());
  for (const hub::CachedModel& model : models) {
    const std::string partial =
        model.num_partial_bytes > 0
            ? fmt::format(" and {} of unfinished files", Size(model.num_partial_bytes))
            : "";
    fmt::print("{:<60} {:>10}  {}{}\n", model.repo, Size(model.num_bytes),
               fmt::join(model.revisions, ", "), partial);
  }
  return {};
}

Status Remove(const std::string& text) {
  ASSIGN_OR_RETURN(const auto name, hub::ParseModelName(text));
  if (!name) return MakeError("'{}' is no model's name; 'lapidary list' has those", text);
  if (name->revision != "main" || (!name->quant.empty() && name->typed.starts_with(name->repo))) {
    return MakeError("all of a model is removed, not one file or revision: lapidary rm {}",
                     name->repo);
  }
  ASSIGN_OR_RETURN(const hub::HubSettings settings, hub::HubSettings::FromEnvironment());
  ASSIGN_OR_RETURN(const int64_t num_bytes, hub::RemoveFromCache(settings.cache, name->repo));
  fmt::print(stderr, "removed {}: {}\n", name->repo, Size(num_bytes));
  return {};
}

}  // namespace

void AddPullCommand(CommandLine& command_line) {
  auto flags = std::make_shared<PullFlags>();
  CLI::App* command = command_line.Add(
      "pull", "Fetch a model of the Hugging Face Hub, and its assistant, into the shared cache",
      [flags] { return Pull(*flags); });
  command->add_option("model", flags->name, kNameHelp)->required();
  command->add_flag("--no-media", flags->no_media,
                    "Without image and audio towers that are files of their own (GGUF)");
  command->add_flag("--no-spec", flags->drafting.no_spec, "Without the assistant that drafts");
  command->footer(
      "NAME@REVISION is a branch, a tag or a commit. The cache is that of huggingface_hub "
      "(HF_HOME, "
      "HF_HUB_CACHE;\n~/.cache/huggingface/hub); HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE are as "
      "there. What is broken off goes on\nwith the same command. The model's path is printed.");
}

void AddListCommand(CommandLine& command_line) {
  auto as_json = std::make_shared<bool>(false);
  CLI::App* command = command_line.Add("list", "List the models in the shared cache",
                                       [as_json] { return List(*as_json); });
  command->add_flag("--json", *as_json, "Print one JSON array");
}

void AddRmCommand(CommandLine& command_line) {
  auto name = std::make_shared<std::string>();
  CLI::App* command =
      command_line.Add("rm", "Remove a model from the shared cache, with all of its revisions",
                       [name] { return Remove(*name); });
  command->add_option("model", *name, kNameHelp)->required();
}

}  // namespace lapidary
