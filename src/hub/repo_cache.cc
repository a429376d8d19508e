#include "hub/repo_cache.h"

#include <unistd.h>

#include <fstream>

#include "base/random_bits.h"
#include "base/read_file.h"
#include "hub/model_name.h"
#include "hub/repo_path.h"

namespace lapidary::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModels = "models--";
constexpr size_t kMaxTreeBytes = size_t{32} << 20;

std::string FolderName(const std::string& repo) {
  std::string name = std::string(kModels) + repo;
  return name.replace(name.find('/'), 1, "--");
}

Status MakeFolder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return {};
  return MakeError("{}: cannot be made: {}", folder.string(), error.message());
}

// A name beside `path` that nobody else uses.
fs::path Beside(const fs::path& path) {
  fs::path other = path;
  other += fmt::format(".{:08x}.tmp", static_cast<uint32_t>(RandomBits()));
  return other;
}

// Readers see the old file or the new one.
Status Replace(const fs::path& path, const std::string& text) {
  RETURN_IF_ERROR(MakeFolder(path.parent_path()));
  const fs::path fresh = Beside(path);
  std::ofstream file(fresh, std::ios::binary);
  file << text;
  file.close();
  std::error_code error;
  if (file) fs::rename(fresh, path, error);
  if (file && !error) return {};
  fs::remove(fresh, error);
  return MakeError("{}: cannot be written", path.string());
}

}  // namespace

RepoCache::RepoCache(const fs::path& cache, const std::string& repo)
    : folder_(cache / FolderName(repo)), locks_(cache / ".locks" / FolderName(repo)) {
  CHECK(IsRepoName(repo)) << repo;
}

fs::path RepoCache::Lock(const std::string& blob_name) const {
  CHECK(IsBlobName(blob_name));
  return locks_ / (blob_name + ".lock");
}

fs::path RepoCache::Blob(const std::string& blob_name) const {
  CHECK(IsBlobName(blob_name));
  return folder_ / "blobs" / blob_name;
}

fs::path RepoCache::Snapshot(const std::string& commit) const {
  CHECK(IsCommit(commit));
  return folder_ / "snapshots" / commit;
}

std::optional<std::string> RepoCache::CommitOf(const std::string& revision) const {
  if (IsCommit(revision)) return revision;
  CHECK(IsRevision(revision));
  const auto text = ReadFile(folder_ / "refs" / revision, 1024);
  if (!text.ok()) return std::nullopt;
  const std::string commit = text->substr(0, text->find_last_not_of(" \r\n") + 1);
  return IsCommit(commit) ? std::optional(commit) : std::nullopt;
}

Status RepoCache::SetCommit(const std::string& revision, const std::string& commit) const {
  if (CommitOf(revision) == commit) return {};  // the cache may be one that we only read
  return Replace(folder_ / "refs" / revision, commit);
}

std::optional<RepoListing> RepoCache::ReadListing(const std::string& commit) const {
  const fs::path path = folder_ / "trees" / (commit + ".json");
  const auto text = ReadFile(path, kMaxTreeBytes);
  if (!text.ok()) return std::nullopt;
  auto listing = ParseTreeFile(*text, path.string(), commit);
  if (!listing.ok()) return std::nullopt;
  return std::move(listing).value();
}

Status RepoCache::WriteListing(const RepoListing& listing) const {
  return Replace(folder_ / "trees" / (listing.commit + ".json"), WriteTreeFile(listing));
}

bool RepoCache::Has(const std::string& commit, const RepoFile& file) const {
  std::error_code error;
  const fs::path path = Snapshot(commit) / file.path;
  const uintmax_t num_bytes = fs::file_size(path, error);
  return !error && num_bytes == static_cast<uintmax_t>(file.num_bytes);
}

Status RepoCache::Link(const std::string& commit, const RepoFile& file) const {
  CHECK(IsRepoPath(file.path));
  const fs::path link = Snapshot(commit) / file.path;
  RETURN_IF_ERROR(MakeFolder(link.parent_path()));
  const fs::path target = Blob(file.BlobName()).lexically_relative(link.parent_path());
  const fs::path fresh = Beside(link);
  std::error_code error;
  fs::create_symlink(target, fresh, error);
  if (!error) fs::rename(fresh, link, error);
  if (!error) return {};
  const std::string problem = error.message();
  fs::remove(fresh, error);
  return MakeError("{}: cannot be made: {}", link.string(), problem);
}

std::optional<std::string> RepoOfFolder(const std::string& folder_name) {
  if (!folder_name.starts_with(kModels)) return std::nullopt;
  std::string repo = folder_name.substr(kModels.size());
  const size_t dashes = repo.find("--");
  if (dashes == std::string::npos) return std::nullopt;
  repo.replace(dashes, 2, "/");
  return IsRepoName(repo) ? std::optional(repo) : std::nullopt;
}

}  // namespace lapidary::hub
