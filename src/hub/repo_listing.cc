#include "hub/repo_listing.h"

#include <algorithm>

#include "base/json_fields.h"
#include "hub/repo_path.h"

namespace lapidary::hub {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTreeFormat = 1;

bool ByPath(const RepoFile& one, const RepoFile& other) { return one.path < other.path; }

// A name from outside, fit for a message.
std::string Shown(std::string_view path) {
  std::string shown(path);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return ShortUtf8(shown, 120);
}

Status CheckFile(const RepoFile& file, std::string_view where) {
  const std::string name = Shown(file.path);
  if (!IsRepoPath(file.path)) {
    return MakeError("{}: '{}' is not a place inside a repository", where, name);
  }
  if (!IsBlobName(file.git_sha1) || file.git_sha1.size() != 40) {
    return MakeError("{}: '{}' has no git sum", where, name);
  }
  if (!file.sha256.empty() && (!IsBlobName(file.sha256) || file.sha256.size() != 64)) {
    return MakeError("{}: '{}' has no sha256", where, name);
  }
  if (!file.xet_hash.empty() && (!IsBlobName(file.xet_hash) || file.xet_hash.size() != 64)) {
    return MakeError("{}: '{}' has no hash of Xet's form", where, name);
  }
  return {};
}

constexpr IntRange kFileSize{.min = 0, .max = kMaxFileBytes};

}  // namespace

const RepoFile* RepoListing::Find(std::string_view path) const {
  const auto it = std::lower_bound(
      files.begin(), files.end(), path,
      [](const RepoFile& file, std::string_view name) { return file.path < name; });
  return it != files.end() && it->path == path ? &*it : nullptr;
}

Result<std::string> ParseCommit(std::string_view json, std::string_view where) {
  ASSIGN_OR_RETURN(const Json answer, ParseJson(json, where));
  JsonFields fields(answer, std::string(where));
  std::string commit = fields.StringOr("sha", "");
  RETURN_IF_ERROR(fields.status());
  if (!IsCommit(commit)) return MakeError("{}: names no commit", where);
  return commit;
}

Status AddTreePage(std::string_view json, std::string_view where, RepoListing* listing) {
  ASSIGN_OR_RETURN(const Json page, ParseJson(json, where));
  if (!page.is_array()) return MakeError("{}: is no list of files", where);
  for (const Json& entry : page) {
    JsonFields fields(entry, std::string(where));
    const bool is_file = fields.StringOr("type", "") == "file";
    RETURN_IF_ERROR(fields.status());
    if (!is_file) continue;
    RepoFile file;
    file.path = fields.StringOr("path", "");
    file.num_bytes = fields.Int("size", kFileSize);
    file.git_sha1 = fields.StringOr("oid", "");
    file.xet_hash = fields.StringOr("xetHash", "");
    if (const Json* lfs = fields.OptionalObject("lfs"); lfs != nullptr) {
      JsonFields large(*lfs, std::string(where));
      file.sha256 = large.StringOr("oid", "");
      file.num_bytes = large.Int("size", kFileSize);
      RETURN_IF_ERROR(large.status());
    }
    RETURN_IF_ERROR(fields.status());
    RETURN_IF_ERROR(CheckFile(file, where));
    if (listing->files.size() >= kMaxRepoFiles) {
      return MakeError("{}: lists more than {} files", where, kMaxRepoFiles);
    }
    listing->files.push_back(std::move(file));
  }
  return {};
}

Status CompleteListing(std::string_view where, RepoListing* listing) {
  std::vector<RepoFile>& files = listing->files;
  std::sort(files.begin(), files.end(), ByPath);
  for (size_t index = 0; index < files.size(); ++index) {
    const std::string& path = files[index].path;
    if (index > 0 && files[index - 1].path == path) {
      return MakeError("{}: lists '{}' twice", where, Shown(path));
    }
    for (size_t slash = path.find('/'); slash != std::string::npos;
         slash = path.find('/', slash + 1)) {
      if (listing->Find(path.substr(0, slash)) != nullptr) {
        return MakeError("{}: lists '{}' as a file and as a folder", where,
                         Shown(path.substr(0, slash)));
      }
    }
  }
  return {};
}

std::string WriteTreeFile(const RepoListing& listing) {
  Json files = Json::object();
  for (const RepoFile& file : listing.files) {
    Json entry = {{"size", file.num_bytes}, {"blob_id", file.git_sha1}};
    if (!file.sha256.empty()) {
      entry["lfs_sha256"] = file.sha256;
      entry["lfs_size"] = file.num_bytes;
    }
    if (!file.xet_hash.empty()) entry["xet_hash"] = file.xet_hash;
    files[file.path] = std::move(entry);
  }
  return Json{{"format_version", kTreeFormat}, {"files", std::move(files)}}.dump(1);
}

Result<RepoListing> ParseTreeFile(std::string_view json, std::string_view where,
                                  const std::string& commit) {
  ASSIGN_OR_RETURN(const Json tree, ParseJson(json, where));
  JsonFields fields(tree, std::string(where));
  fields.Int("format_version", {.min = kTreeFormat, .max = kTreeFormat});
  const Json* entries = fields.OptionalObject("files");
  RETURN_IF_ERROR(fields.status());
  if (entries == nullptr) return MakeError("{}: lists no files", where);
  RepoListing listing;
  listing.commit = commit;
  for (const auto& [path, entry] : entries->items()) {
    JsonFields file_fields(entry, std::string(where));
    RepoFile file;
    file.path = path;
    file.num_bytes = file_fields.Int("size", kFileSize);
    file.git_sha1 = file_fields.StringOr("blob_id", "");
    file.sha256 = file_fields.StringOr("lfs_sha256", "");
    file.num_bytes = file_fields.IntOr("lfs_size", file.num_bytes, kFileSize);
    file.xet_hash = file_fields.StringOr("xet_hash", "");
    RETURN_IF_ERROR(file_fields.status());
    RETURN_IF_ERROR(CheckFile(file, where));
    if (listing.files.size() >= kMaxRepoFiles) {
      return MakeError("{}: lists more than {} files", where, kMaxRepoFiles);
    }
    listing.files.push_back(std::move(file));
  }
  RETURN_IF_ERROR(CompleteListing(where, &listing));
  return listing;
}

RepoListing ListSnapshot(const fs::path& snapshot, const std::string& commit) {
  RepoListing listing;
  listing.commit = commit;
  std::error_code error;
  for (fs::recursive_directory_iterator it(snapshot, error), end; !error && it != end;
       it.increment(error)) {
    // Links are followed to blobs, not into folders.
    std::error_code unreadable;
    if (!it->is_regular_file(unreadable) || listing.files.size() >= kMaxRepoFiles) continue;
    RepoFile file;
    file.path = it->path().lexically_relative(snapshot).string();
    file.num_bytes = static_cast<int64_t>(it->file_size(unreadable));
    if (!unreadable && IsRepoPath(file.path)) listing.files.push_back(std::move(file));
  }
  std::sort(listing.files.begin(), listing.files.end(), ByPath);
  return listing;
}

}  // namespace lapidary::hub
