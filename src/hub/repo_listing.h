// Which files a repository has at a commit: as the Hub says it, and as the cache keeps it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lapidary::hub {

struct RepoFile {
  std::string path;       // in the repository; IsRepoPath
  int64_t num_bytes = 0;  // at most kMaxFileBytes
  std::string git_sha1;   // of the blob in git: for large files, of the pointer to them
  std::string sha256;     // of large files' bytes; else empty
  std::string xet_hash;   // kept for other readers of the cache; else empty

  // What its blob is called in the cache, and what its bytes are checked by. Empty where only the
  // cache's folders were at hand.
  const std::string& BlobName() const { return sha256.empty() ? git_sha1 : sha256; }
};

inline constexpr int64_t kMaxFileBytes = int64_t{1} << 42;
inline constexpr size_t kMaxRepoFiles = 20'000;

struct RepoListing {
  std::string commit;
  std::vector<RepoFile> files;  // by path

  const RepoFile* Find(std::string_view path) const;
};

// The commit of a revision, from the Hub's answer to /api/models/REPO/revision/REVISION.
Result<std::string> ParseCommit(std::string_view json, std::string_view where);

// Adds the files of one page of /api/models/REPO/tree/COMMIT. What cannot be stored safely (a path
// out of its folder, an impossible size or sum) is an error.
Status AddTreePage(std::string_view json, std::string_view where, RepoListing* listing);
// Once all pages are there: sorts; an error where a path is there twice, or is a file and a folder.
Status CompleteListing(std::string_view where, RepoListing* listing);

// The form of huggingface_hub's trees/COMMIT.json, which is there so that both of us know a whole
// snapshot from a part of one.
std::string WriteTreeFile(const RepoListing& listing);
Result<RepoListing> ParseTreeFile(std::string_view json, std::string_view where,
                                  const std::string& commit);

// What a snapshot's folder holds, where no listing of it was kept: paths and sizes alone.
RepoListing ListSnapshot(const std::filesystem::path& snapshot, const std::string& commit);

}  // namespace lapidary::hub
