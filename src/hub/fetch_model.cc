#include "hub/fetch_model.h"

#include <spdlog/spdlog.h>
#include <sys/statvfs.h>

#include "base/progress.h"
#include "hub/blob_download.h"
#include "hub/file_lock.h"
#include "hub/hub_client.h"
#include "hub/partial_file.h"
#include "hub/repo_cache.h"
#include "hub/repo_path.h"

namespace lapidary::hub {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSmallFileBytes = int64_t{64} << 20;  // tokenizers are half of it
constexpr int64_t kSpaceLeft = int64_t{64} << 20;       // that nobody should be without

double Gigabytes(int64_t num_bytes) { return 1e-9 * static_cast<double>(num_bytes); }

// Which files there are, from the Hub or, where it cannot be asked, from the cache.
struct Found {
  RepoListing listing;
  bool is_online = true;
};

class ModelFetch {
 public:
  ModelFetch(const HubSettings& settings, const FetchRequest& request,
             const std::atomic<bool>& cancelled)
      : settings_(settings),
        request_(request),
        cancelled_(cancelled),
        cache_(settings.cache, request.name.repo) {}

  Result<FetchedModel> Run() {
    const ModelName& name = request_.name;
    ASSIGN_OR_RETURN(const Found found, Find());
    const std::string& commit = found.listing.commit;
    ASSIGN_OR_RETURN(const ChosenFiles chosen,
                     ChooseFiles(found.listing, request_.wants, name.repo));
    std::vector<RepoFile> missing;
    for (const RepoFile& file : chosen.files) {
      if (!cache_.Has(commit, file)) missing.push_back(file);
    }
    if (!missing.empty() && !found.is_online) {
      return MakeError("{}, and the copy of {} in {} lacks {} ({:.2f} GB): fetch it once with '{}'",
                       why_offline_, name.Spelled(), cache_.folder().string(), missing[0].path,
                       Gigabytes(missing[0].num_bytes), "lapidary pull " + name.Spelled());
    }
    FetchedModel model;
    model.commit = commit;
    model.path = cache_.Snapshot(commit);
    if (!missing.empty()) RETURN_IF_ERROR(Fetch(commit, missing, &model));
    if (!missing.empty() || found.is_online) RETURN_IF_ERROR(Remember(found.listing));
    if (!chosen.assistant.empty()) model.assistant = model.path / chosen.assistant;
    if (!chosen.model.empty()) model.path /= chosen.model;
    return model;
  }

 private:
  // The revision's commit and files.
  Result<Found> Find() {
    Found found;
    if (settings_.is_offline) {
      why_offline_ = "HF_HUB_OFFLINE is set";
      return FindInCache();
    }
    HubClient client(settings_, cancelled_);
    auto listing = AskHub(client);
    if (listing.ok()) {
      found.listing = std::move(listing).value();
      return found;
    }
    if (cancelled_ || !client.was_unreachable()) return listing.error();
    why_offline_ = listing.error().message;
    ASSIGN_OR_RETURN(found, FindInCache());
    spdlog::warn("{}; using what is in the cache", why_offline_);
    return found;
  }

  // A listing does not change with its commit, so one that was kept is as good as the Hub's.
  Result<RepoListing> AskHub(HubClient& client) {
    const ModelName& name = request_.name;
    std::string commit = name.revision;
    if (!IsCommit(commit)) {
      ASSIGN_OR_RETURN(commit, client.CommitOf(name.repo, name.revision));
    }
    if (auto listing = cache_.ReadListing(commit)) return std::move(*listing);
    return client.ListFiles(name.repo, commit);
  }

  Result<Found> FindInCache() {
    const ModelName& name = request_.name;
    const auto commit = cache_.CommitOf(name.revision);
    std::error_code error;
    if (!commit || !fs::is_directory(cache_.Snapshot(*commit), error)) {
      return MakeError(
          "{}, and {}{} is not in the cache ({}): fetch it with 'lapidary pull {}' where the Hub "
          "can be reached, or name a directory or a GGUF file",
          why_offline_, name.Spelled(),
          name.typed.starts_with(name.repo) ? "" : " (" + name.repo + ")", settings_.cache.string(),
          name.Spelled());
    }
    Found found;
    found.is_online = false;
    auto listing = cache_.ReadListing(*commit);
    found.listing = listing ? std::move(*listing) : ListSnapshot(cache_.Snapshot(*commit), *commit);
    return found;
  }

  // What the next call without the Hub needs to know. A cache that cannot be written is as good.
  Status Remember(const RepoListing& listing) {
    const Status ref = cache_.SetCommit(request_.name.revision, listing.commit);
    const Status tree =
        cache_.ReadListing(listing.commit) ? Status() : cache_.WriteListing(listing);
    for (const Status& status : {ref, tree}) {
      if (!status.ok()) spdlog::debug("{}", status.error().message);
    }
    return {};
  }

  Status CheckSpace(const std::vector<RepoFile>& missing) {
    int64_t needed = 0;
    for (const RepoFile& file : missing) {
      const fs::path blob = cache_.Blob(file.BlobName());
      std::error_code error;
      if (fs::exists(blob, error)) continue;
      needed += file.num_bytes - PartialFile::BytesThere(PartialPath(blob), file.num_bytes);
    }
    struct statvfs disk {};
    fs::path folder = cache_.folder();
    while (statvfs(folder.c_str(), &disk) != 0 && folder.has_relative_path()) {
      folder = folder.parent_path();
    }
    const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
    if (needed + kSpaceLeft <= free) return {};
    return MakeError(
        "{} needs {:.2f} GB on the disk of {}, which has {:.2f} GB left: 'lapidary list' and "
        "'lapidary rm NAME' make room, HF_HOME can name a folder on another disk",
        request_.name.Spelled(), Gigabytes(needed), settings_.cache.string(), Gigabytes(free));
  }

  Status Fetch(const std::string& commit, const std::vector<RepoFile>& missing,
               FetchedModel* model) {
    RETURN_IF_ERROR(CheckSpace(missing));
    int64_t num_bytes = 0;
    for (const RepoFile& file : missing) num_bytes += file.num_bytes;
    model->num_fetched_bytes = num_bytes;
    spdlog::info("fetching {} from {}: {:.2f} GB in {} files, to {}", request_.name.Spelled(),
                 settings_.Host(), Gigabytes(num_bytes), missing.size(), cache_.folder().string());
    Progress progress("fetching", num_bytes, Progress::Unit::kBytes);
    bool is_checked = !request_.check;
    for (const RepoFile& file : missing) {
      if (!is_checked && file.num_bytes > kSmallFileBytes) {
        is_checked = true;
        RETURN_IF_ERROR(request_.check(cache_.Snapshot(commit)));
      }
      RETURN_IF_ERROR(FetchFile(commit, file, progress));
    }
    return {};
  }

  Status FetchFile(const std::string& commit, const RepoFile& file, Progress& progress) {
    const fs::path blob = cache_.Blob(file.BlobName());
    ASSIGN_OR_RETURN(const FileLock lock,
                     FileLock::Take(
                         cache_.Lock(file.BlobName()),
                         [&] { spdlog::info("another process fetches {}: waiting", file.path); },
                         [this] { return cancelled_.load(); }));
    std::error_code error;
    // Another process may have fetched it meanwhile, or another revision has the same file. One of
    // another length is a wreck.
    const bool is_there = fs::file_size(blob, error) == static_cast<uintmax_t>(file.num_bytes);
    if (!is_there) {
      fs::create_directories(blob.parent_path(), error);
      progress.Skip(PartialFile::BytesThere(PartialPath(blob), file.num_bytes));
      RETURN_IF_ERROR(DownloadBlob(
          {settings_, request_.name.repo, file,
           HubClient::FileUrl(settings_, request_.name.repo, commit, file.path), blob,
           [&progress](int64_t num_bytes) { progress.Advance(num_bytes); }, cancelled_}));
    } else {
      progress.Skip(file.num_bytes);
    }
    return cache_.Link(commit, file);
  }

  const HubSettings& settings_;
  const FetchRequest& request_;
  const std::atomic<bool>& cancelled_;
  const RepoCache cache_;
  std::string why_offline_;
};

}  // namespace

Result<FetchedModel> FetchModel(const HubSettings& settings, const FetchRequest& request,
                                const std::atomic<bool>& cancelled) {
  return ModelFetch(settings, request, cancelled).Run();
}

}  // namespace lapidary::hub
