#include "hub/hub_client.h"

#include <chrono>
#include <thread>

#include "hub/hub_error.h"

namespace lapidary::hub {
namespace {

constexpr int64_t kMaxAnswerBytes = int64_t{16} << 20;
constexpr int kMaxPages = 100;
constexpr int kMaxAttempts = 3;
constexpr std::chrono::milliseconds kPause{300};

// As a part of a URL's path; '/' stays.
std::string Escaped(std::string_view text, bool keeps_slashes) {
  std::string escaped;
  for (const unsigned char c : text) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.' || c == '~';
    if (is_plain || (c == '/' && keeps_slashes)) {
      escaped += static_cast<char>(c);
    } else {
      escaped += fmt::format("%{:02X}", c);
    }
  }
  return escaped;
}

}  // namespace

std::string NextPage(const std::string& link) {
  const size_t relation = link.find("rel=\"next\"");
  if (relation == std::string::npos) return {};
  const size_t begin = link.rfind('<', relation);
  const size_t end = link.rfind('>', relation);
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  return link.substr(begin + 1, end - begin - 1);
}

HubClient::HubClient(const HubSettings& settings, const std::atomic<bool>& cancelled)
    : settings_(settings), cancelled_(cancelled), getter_(settings, cancelled) {}

Result<std::string> HubClient::Ask(const std::string& url, const std::string& repo,
                                   const std::string& what, std::string* link) {
  for (int attempt = 1;; ++attempt) {
    std::string text;
    const HttpAnswer answer = getter_.GetText(url, kMaxAnswerBytes, &text);
    if (answer.ok()) {
      if (link != nullptr) *link = answer.link;
      return text;
    }
    was_unreachable_ = MayPass(answer) && answer.status != 200;
    // Where nobody answers, asking again takes long and helps little.
    const bool may_help = answer.status != 0 && MayPass(answer) && !answer.was_too_long;
    if (!may_help || attempt == kMaxAttempts || cancelled_) {
      return HubError(answer, settings_, repo, what);
    }
    for (int step = 0; step < attempt && !cancelled_; ++step) std::this_thread::sleep_for(kPause);
  }
}

Result<std::string> HubClient::CommitOf(const std::string& repo, const std::string& revision) {
  const std::string url = fmt::format("{}/api/models/{}/revision/{}", settings_.endpoint, repo,
                                      Escaped(revision, /*keeps_slashes=*/false));
  ASSIGN_OR_RETURN(const std::string text, Ask(url, repo, fmt::format("revision '{}'", revision)));
  return ParseCommit(text, fmt::format("what {} says about {}", settings_.Host(), repo));
}

Result<RepoListing> HubClient::ListFiles(const std::string& repo, const std::string& commit) {
  RepoListing listing;
  listing.commit = commit;
  const std::string where = fmt::format("what {} lists of {}", settings_.Host(), repo);
  const auto endpoint = net::Url::Parse(settings_.endpoint);
  std::string url = fmt::format("{}/api/models/{}/tree/{}?recursive=true&expand=false",
                                settings_.endpoint, repo, commit);
  for (int page = 1; page <= kMaxPages; ++page) {
    std::string link;
    ASSIGN_OR_RETURN(const std::string text, Ask(url, repo, "revision " + commit, &link));
    RETURN_IF_ERROR(AddTreePage(text, where, &listing));
    url = NextPage(link);
    if (url.empty()) {
      RETURN_IF_ERROR(CompleteListing(where, &listing));
      return listing;
    }
    const auto next = net::Url::Parse(url);
    if (!next || !next->IsSameOrigin(*endpoint)) {
      return MakeError("{}: its next page is on another host", where);
    }
  }
  return MakeError("{}: has more than {} pages", where, kMaxPages);
}

std::string HubClient::FileUrl(const HubSettings& settings, const std::string& repo,
                               const std::string& commit, const std::string& path) {
  return fmt::format("{}/{}/resolve/{}/{}", settings.endpoint, repo, commit,
                     Escaped(path, /*keeps_slashes=*/true));
}

}  // namespace lapidary::hub
