#include "hub/blob_download.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/progress.h"
#include "hub/blob_sum.h"
#include "hub/http_getter.h"
#include "hub/hub_error.h"
#include "hub/partial_file.h"

namespace lapidary::hub {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxConnections = 8;
// Attempts of a thread in a row that brought next to nothing.
constexpr int kMaxFailures = 5;
constexpr int64_t kNextToNothing = int64_t{64} << 10;
constexpr std::chrono::milliseconds kFirstPause{250};  // doubled after each failure
// Of a whole file that no part of can be asked for, and of files whose sum is wrong.
constexpr int kMaxWholeAttempts = 3;
constexpr int kMaxRounds = 2;

class PieceFetcher {
 public:
  PieceFetcher(const BlobDownload& download, PartialFile& partial)
      : download_(download), partial_(partial), location_(download.url) {
    for (int piece = 0; piece < partial.num_pieces(); ++piece) {
      if (partial.Missing(piece).size() > 0) todo_.push_back(piece);
    }
  }

  Status Run() {
    const int num_threads = std::min<int>(kMaxConnections, static_cast<int>(todo_.size()));
    std::vector<std::thread> threads;
    for (int thread = 1; thread < num_threads; ++thread) threads.emplace_back([this] { Work(); });
    Work();
    for (std::thread& thread : threads) thread.join();
    if (std::exchange(has_no_ranges_, false) && !problem_) FetchWhole();
    if (problem_) return *problem_;
    return {};
  }

 private:
  void Work() {
    HttpGetter getter(download_.settings, download_.cancelled);
    int num_failures = 0;
    for (int piece = TakePiece(); piece >= 0; piece = TakePiece()) {
      while (!FetchPiece(getter, piece, num_failures)) {
        if (IsOver()) return;
      }
      num_failures = 0;
    }
  }

  int TakePiece() {
    const std::lock_guard lock(mutex_);
    if (problem_ || has_no_ranges_ || todo_.empty()) return -1;
    const int piece = todo_.front();
    todo_.pop_front();
    return piece;
  }

  bool IsOver() {
    const std::lock_guard lock(mutex_);
    return problem_ || has_no_ranges_;
  }

  // One attempt; whether the piece is whole.
  bool FetchPiece(HttpGetter& getter, int piece, int& num_failures) {
    const PartialFile::Range missing = partial_.Missing(piece);
    std::optional<ByteRange> range;
    if (missing.size() < partial_.num_bytes()) range = ByteRange{missing.begin, missing.end};
    const std::string location = Location();
    const HttpAnswer answer =
        getter.Get(location, range, partial_.num_bytes(), missing.size(),
                   [&](std::string_view bytes) { return Take(piece, bytes); });
    if (answer.ignored_range) {
      const std::lock_guard lock(mutex_);
      has_no_ranges_ = true;
      return false;
    }
    const int64_t num_arrived = missing.size() - partial_.Missing(piece).size();
    if (partial_.Missing(piece).size() == 0 && !answer.was_too_long) {
      SetLocation(answer.url);
      return true;
    }
    if (answer.was_too_long && partial_.Missing(piece).size() == 0) {
      Fail(HubError(answer, download_.settings, download_.repo, What()));
      return false;
    }
    num_failures = num_arrived >= kNextToNothing ? 0 : num_failures + 1;
    // An address that large files were redirected to holds for a while only.
    const bool was_redirected = answer.url != download_.url;
    if (was_redirected && answer.status >= 400) SetLocation(download_.url);
    if (download_.cancelled || num_failures >= kMaxFailures ||
        !(MayPass(answer) || was_redirected)) {
      Fail(Explain(answer));
      return false;
    }
    Pause(num_failures, answer.retry_after);
    return false;
  }

  // Without ranges: from the first byte to the last, each time anew.
  void FetchWhole() {
    HttpGetter getter(download_.settings, download_.cancelled);
    for (int attempt = 1;; ++attempt) {
      download_.on_bytes(-partial_.num_written());
      if (const Status reset = partial_.Reset(); !reset.ok()) return Fail(reset.error());
      int piece = 0;
      const HttpAnswer answer = getter.Get(
          download_.url, std::nullopt, 0, partial_.num_bytes(), [&](std::string_view bytes) {
            while (!bytes.empty()) {
              const auto room = static_cast<size_t>(partial_.Missing(piece).size());
              if (!Take(piece, bytes.substr(0, room))) return false;
              if (bytes.size() >= room) ++piece;
              bytes.remove_prefix(std::min(room, bytes.size()));
            }
            return true;
          });
      if (partial_.is_complete() && !answer.was_too_long) return;
      if (problem_) return;
      if (download_.cancelled || attempt == kMaxWholeAttempts || !MayPass(answer)) {
        return Fail(Explain(answer));
      }
      Pause(attempt, answer.retry_after);
    }
  }

  bool Take(int piece, std::string_view bytes) {
    if (const Status written = partial_.Append(piece, bytes); !written.ok()) {
      Fail(written.error());
      return false;
    }
    download_.on_bytes(static_cast<int64_t>(bytes.size()));
    return !IsOver();
  }

  Error Explain(HttpAnswer answer) const {
    if (download_.cancelled) return MakeError("interrupted");
    if (answer.problem.empty() && answer.status < 300) answer.problem = "it ends too early";
    return HubError(answer, download_.settings, download_.repo, What());
  }

  std::string What() const { return fmt::format("file {}", download_.file.path); }

  void Fail(Error error) {
    const std::lock_guard lock(mutex_);
    if (!problem_) problem_ = std::move(error);
    over_.notify_all();
  }

  void Pause(int num_failures, int retry_after) {
    const auto pause = std::max<std::chrono::milliseconds>(
        kFirstPause * (1 << std::max(num_failures - 1, 0)), std::chrono::seconds(retry_after));
    constexpr std::chrono::milliseconds kStep{50};  // to see that it was cancelled
    std::unique_lock lock(mutex_);
    for (auto passed = kStep; passed <= pause && !problem_ && !download_.cancelled;
         passed += kStep) {
      over_.wait_for(lock, kStep);
    }
  }

  std::string Location() {
    const std::lock_guard lock(mutex_);
    return location_;
  }
  void SetLocation(const std::string& location) {
    const std::lock_guard lock(mutex_);
    location_ = location;
  }

  const BlobDownload& download_;
  PartialFile& partial_;  // a piece is one thread's
  std::mutex mutex_;      // guards what follows
  std::condition_variable over_;
  std::deque<int> todo_;
  std::string location_;  // where the last piece came from
  bool has_no_ranges_ = false;
  std::optional<Error> problem_;
};

// Whether the bytes are those that the listing names.
Result<bool> HasItsSum(const BlobDownload& download, const fs::path& path) {
  Progress progress("checking " + download.file.path, download.file.num_bytes,
                    Progress::Unit::kBytes);
  ASSIGN_OR_RETURN(
      const std::string sum,
      SumOfFile(path, download.file.num_bytes, download.file.BlobName(), [&](int64_t num_read) {
        progress.Advance(num_read);
        return !download.cancelled.load();
      }));
  return sum == download.file.BlobName();
}

}  // namespace

fs::path PartialPath(const fs::path& place) {
  fs::path partial = place;
  partial += ".lapidary.incomplete";
  return partial;
}

Status DownloadBlob(const BlobDownload& download) {
  const fs::path path = PartialPath(download.place);
  ASSIGN_OR_RETURN(PartialFile partial, PartialFile::Open(path, download.file.num_bytes));
  for (int round = 1; round <= kMaxRounds; ++round) {
    RETURN_IF_ERROR(PieceFetcher(download, partial).Run());
    ASSIGN_OR_RETURN(const bool is_right, HasItsSum(download, path));
    if (is_right) {
      RETURN_IF_ERROR(partial.Finish());
      std::error_code error;
      fs::rename(path, download.place, error);
      if (error)
        return MakeError("{}: cannot be made: {}", download.place.string(), error.message());
      return {};
    }
    download.on_bytes(-partial.num_written());
    RETURN_IF_ERROR(partial.Reset());
  }
  std::error_code error;
  fs::remove(path, error);
  return MakeError(
      "the file {} of {} has not the sum that is listed for it, twice: what comes from {} is not "
      "what was published",
      download.file.path, download.repo, download.settings.Host());
}

}  // namespace lapidary::hub
