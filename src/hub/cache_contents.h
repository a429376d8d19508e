// Lists the models in the cache, and removes one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace lapidary::hub {

struct CachedModel {
  std::string repo;
  int64_t num_bytes = 0;               // of the blobs that are whole
  int64_t num_partial_bytes = 0;       // that arrived of files that are not
  std::vector<std::string> revisions;  // that lead to a snapshot: "main", or its commit
  std::filesystem::path folder;
};

// By name. Folders that are no models' are not looked at.
std::vector<CachedModel> ListCache(const std::filesystem::path& cache);

// Removes all of a model's folder; returns how many bytes were in it. An error where it is not
// there, or a process is fetching a file of it.
Result<int64_t> RemoveFromCache(const std::filesystem::path& cache, const std::string& repo);

}  // namespace lapidary::hub
