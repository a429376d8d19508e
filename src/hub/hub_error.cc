#include "hub/hub_error.h"

#include "base/json_fields.h"

namespace lapidary::hub {
namespace {

// A text from a header, fit for a terminal.
std::string Shown(const std::string& text) {
  std::string shown;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7f) shown += c;
  }
  return ShortUtf8(shown, 200);
}

std::string HostOf(const std::string& address) {
  const auto url = net::Url::Parse(address);
  return url ? url->Host() : "the Hub";
}

}  // namespace

Error HubError(const HttpAnswer& answer, const HubSettings& settings, const std::string& repo,
               const std::string& what) {
  const std::string host = HostOf(answer.url);
  const std::string page = settings.endpoint + "/" + repo;
  const std::string tokens = settings.endpoint + "/settings/tokens";
  const bool has_token = !settings.token.empty();
  const std::string said =
      answer.error_message.empty() ? "" : fmt::format(" (\"{}\")", Shown(answer.error_message));
  if (answer.status == 0) {
    return MakeError("{} cannot be reached for {}: {}", host, repo, answer.problem);
  }
  if (answer.status == 200 || answer.status == 206) {
    return MakeError("{} of {} could not be fetched whole from {}: {}", what, repo, host,
                     answer.problem);
  }
  if (answer.error_code == "GatedRepo") {
    return MakeError("{} is gated: accept its terms at {} {}", repo, page,
                     has_token
                         ? "with the account whose token HF_TOKEN is"
                         : fmt::format("and set HF_TOKEN to a token of your account ({})", tokens));
  }
  if (answer.error_code == "RevisionNotFound" || answer.error_code == "EntryNotFound") {
    return MakeError("{} has no {}: {} lists what there is", repo, what, page);
  }
  if (answer.status == 401 && has_token && answer.error_code != "RepoNotFound") {
    return MakeError("{} does not accept the token of HF_TOKEN{}: {} makes new ones", host, said,
                     tokens);
  }
  if (answer.status == 401 || answer.error_code == "RepoNotFound") {
    return MakeError(
        "{} shows no model {}: it is a wrong name, a path that is not here, or private, where {}",
        host, repo,
        has_token ? "HF_TOKEN is of an account that may not see it"
                  : fmt::format("HF_TOKEN is needed ({})", tokens));
  }
  if (answer.status == 416) {
    return MakeError("{} has less of {} of {} than it lists", host, what, repo);
  }
  if (!answer.problem.empty()) {
    return MakeError("{} of {} cannot be fetched from {}: {}", what, repo, host, answer.problem);
  }
  return MakeError("{} answers {} for {} of {}{}", host, answer.status, what, repo, said);
}

bool MayPass(const HttpAnswer& answer) {
  const long status = answer.status;
  return status < 300 || status == 408 || status == 429 || status >= 500;
}

}  // namespace lapidary::hub
