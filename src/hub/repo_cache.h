// A model's folder in the cache that we share with huggingface_hub:
//
//   models--OWNER--NAME/refs/main                      the commit that main was when last seen
//                      /blobs/SUM                      files by what is in them
//                      /snapshots/COMMIT/config.json   -> ../../blobs/SUM
//                      /trees/COMMIT.json              all files of the commit, here or not
//   .locks/models--OWNER--NAME/SUM.lock                held while SUM is fetched
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"
#include "hub/repo_listing.h"

namespace lapidary::hub {

class RepoCache {
 public:
  // `repo` is checked (IsRepoName).
  RepoCache(const std::filesystem::path& cache, const std::string& repo);

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path LockFolder() const { return locks_; }
  std::filesystem::path Lock(const std::string& blob_name) const;
  std::filesystem::path Blob(const std::string& blob_name) const;
  std::filesystem::path Snapshot(const std::string& commit) const;

  // The commit of a revision that was seen before; of a commit, itself.
  std::optional<std::string> CommitOf(const std::string& revision) const;
  Status SetCommit(const std::string& revision, const std::string& commit) const;

  std::optional<RepoListing> ReadListing(const std::string& commit) const;
  Status WriteListing(const RepoListing& listing) const;

  // Whether the snapshot has the file, in the length that is listed.
  bool Has(const std::string& commit, const RepoFile& file) const;
  // Makes the snapshot's link to the file's blob, which must be there.
  Status Link(const std::string& commit, const RepoFile& file) const;

 private:
  std::filesystem::path folder_;
  std::filesystem::path locks_;
};

// "google/gemma-4-E4B-it" of "models--google--gemma-4-E4B-it"; nothing for other folders.
std::optional<std::string> RepoOfFolder(const std::string& folder_name);

}  // namespace lapidary::hub
