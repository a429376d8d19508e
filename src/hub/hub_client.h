// Requests to the API of the Hugging Face Hub.
#pragma once

#include <atomic>
#include <string>

#include "base/result.h"
#include "hub/http_getter.h"
#include "hub/hub_settings.h"
#include "hub/repo_listing.h"

namespace lapidary::hub {

class HubClient {
 public:
  HubClient(const HubSettings& settings, const std::atomic<bool>& cancelled);

  Result<std::string> CommitOf(const std::string& repo, const std::string& revision);
  // All pages of it, which may not be more than a bound.
  Result<RepoListing> ListFiles(const std::string& repo, const std::string& commit);

  // Whether the last error may be the network's or a passing one of the Hub: not an answer to what
  // was asked.
  bool was_unreachable() const { return was_unreachable_; }

  static std::string FileUrl(const HubSettings& settings, const std::string& repo,
                             const std::string& commit, const std::string& path);

 private:
  // The text of a 200; asks again a few times where that may help. `link` is the answer's.
  Result<std::string> Ask(const std::string& url, const std::string& repo, const std::string& what,
                          std::string* link = nullptr);

  const HubSettings& settings_;
  const std::atomic<bool>& cancelled_;
  HttpGetter getter_;
  bool was_unreachable_ = false;
};

// Where a Link header says that the next page is: '<URL>; rel="next"'. Empty: there is none.
std::string NextPage(const std::string& link);

}  // namespace lapidary::hub
