// From a model's name to its files on this machine: what is in the cache already, and what has to
// be fetched from the Hub first.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "hub/file_choice.h"
#include "hub/hub_settings.h"
#include "hub/model_name.h"

namespace lapidary::hub {

struct FetchRequest {
  ModelName name;
  FileWants wants;
  // Called with the snapshot once all of its small files are there and before large ones are
  // fetched; an error ends it there. May be empty.
  std::function<Status(const std::filesystem::path& snapshot)> check = {};
};

struct FetchedModel {
  std::filesystem::path path;  // the snapshot's folder, or the GGUF file in it
  std::string commit;
  std::optional<std::filesystem::path> assistant;  // a GGUF file of the same repository
  int64_t num_fetched_bytes = 0;
};

// What is known of a revision that is in the cache is asked anew at the Hub, unless the revision is
// a commit; where the Hub cannot be reached, or HF_HUB_OFFLINE is set, what is in the cache is
// taken if it is whole, and a line of the log says so. Tells its progress on stderr. Once
// `cancelled` is set it ends soon, with an error; another call goes on from there.
Result<FetchedModel> FetchModel(const HubSettings& settings, const FetchRequest& request,
                                const std::atomic<bool>& cancelled);

}  // namespace lapidary::hub
