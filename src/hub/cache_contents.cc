#include "hub/cache_contents.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "hub/file_lock.h"
#include "hub/repo_cache.h"
#include "hub/repo_path.h"

namespace lapidary::hub {
namespace {

namespace fs = std::filesystem;

// On the disk: of a file with holes, what is not a hole.
int64_t BytesOnDisk(const fs::path& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? int64_t{512} * info.st_blocks : 0;
}

template <typename Visit>
void ForEach(const fs::path& folder, const Visit& visit) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    visit(*it);
  }
}

CachedModel Describe(const fs::path& folder, const std::string& repo, const RepoCache& cache) {
  CachedModel model;
  model.repo = repo;
  model.folder = folder;
  ForEach(folder / "blobs", [&](const fs::directory_entry& entry) {
    std::error_code error;
    const std::string name = entry.path().filename().string();
    if (IsBlobName(name)) {
      const uintmax_t num_bytes = entry.file_size(error);
      if (!error) model.num_bytes += static_cast<int64_t>(num_bytes);
    } else if (name.ends_with(".incomplete")) {
      model.num_partial_bytes += BytesOnDisk(entry.path());
    }
  });
  std::set<std::string> named;
  std::error_code error;
  const fs::path refs = folder / "refs";
  for (fs::recursive_directory_iterator it(refs, error), end; !error && it != end;
       it.increment(error)) {
    const std::string revision = it->path().lexically_relative(refs).string();
    if (!it->is_regular_file() || !IsRevision(revision)) continue;
    const auto commit = cache.CommitOf(revision);
    std::error_code missing;
    if (!commit || !fs::is_directory(cache.Snapshot(*commit), missing)) continue;
    model.revisions.push_back(revision);
    named.insert(*commit);
  }
  ForEach(folder / "snapshots", [&](const fs::directory_entry& entry) {
    const std::string commit = entry.path().filename().string();
    if (IsCommit(commit) && named.count(commit) == 0) model.revisions.push_back(commit);
  });
  std::sort(model.revisions.begin(), model.revisions.end());
  return model;
}

}  // namespace

std::vector<CachedModel> ListCache(const fs::path& cache) {
  std::vector<CachedModel> models;
  ForEach(cache, [&](const fs::directory_entry& entry) {
    std::error_code error;
    const auto repo = RepoOfFolder(entry.path().filename().string());
    if (!repo || !entry.is_directory(error)) return;
    models.push_back(Describe(entry.path(), *repo, RepoCache(cache, *repo)));
  });
  std::sort(models.begin(), models.end(),
            [](const CachedModel& one, const CachedModel& other) { return one.repo < other.repo; });
  return models;
}

Result<int64_t> RemoveFromCache(const fs::path& cache, const std::string& repo) {
  const RepoCache layout(cache, repo);
  std::error_code error;
  if (!fs::is_directory(layout.folder(), error)) {
    return MakeError("{} is not in the cache ({}): 'lapidary list' says what is", repo,
                     cache.string());
  }
  bool is_being_fetched = false;
  ForEach(layout.LockFolder(), [&](const fs::directory_entry& entry) {
    if (FileLock::IsHeld(entry.path())) is_being_fetched = true;
  });
  if (is_being_fetched) return MakeError("{} is being fetched by another process", repo);
  const CachedModel model = Describe(layout.folder(), repo, layout);
  fs::remove_all(layout.folder(), error);
  if (error) {
    return MakeError("{}: cannot be removed: {}", layout.folder().string(), error.message());
  }
  return model.num_bytes + model.num_partial_bytes;
}

}  // namespace lapidary::hub
