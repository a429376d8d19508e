// Fetches one large or small file: its pieces over several connections, each gone on with after a
// break, the whole checked by length and sum before it takes its place.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>

#include "base/result.h"
#include "hub/hub_settings.h"
#include "hub/repo_listing.h"

namespace lapidary::hub {

struct BlobDownload {
  const HubSettings& settings;
  std::string repo;
  RepoFile file;
  std::string url;              // at the Hub, which redirects to where large files are
  std::filesystem::path place;  // of the blob
  // Bytes that arrived since the last call; below 0 for those that have to come again. Any thread.
  std::function<void(int64_t num_bytes)> on_bytes;
  const std::atomic<bool>& cancelled;
};

// Where the bytes are until they are all there and right: beside the blob.
std::filesystem::path PartialPath(const std::filesystem::path& place);

// The caller holds the blob's lock. After an error, or if the process ends, what had arrived stays
// in PartialPath and the next call goes on from there.
Status DownloadBlob(const BlobDownload& download);

}  // namespace lapidary::hub
