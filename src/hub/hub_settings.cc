#include "hub/hub_settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/read_file.h"
#include "hub/lower_case.h"
#include "net/curl.h"

namespace lapidary::hub {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTokenBytes = 4096;
constexpr int64_t kMaxTimeout = 86400;

class Environment {
 public:
  explicit Environment(const std::function<const char*(const char*)>& get) : get_(get) {}

  std::string Get(const char* name) const {
    const char* value = get_(name);
    return value == nullptr ? "" : value;
  }
  bool IsTrue(const char* name) const {
    const std::string value = LowerCase(Get(name));
    return value == "1" || value == "on" || value == "yes" || value == "true" || value == "y" ||
           value == "t";
  }
  // A path with "~" for the home folder; empty: the variable is not set.
  fs::path Path(const char* name) const {
    const std::string value = Get(name);
    if (value == "~") return Get("HOME");
    if (value.starts_with("~/")) return fs::path(Get("HOME")) / value.substr(2);
    return value;
  }

 private:
  const std::function<const char*(const char*)>& get_;
};

std::string Trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  return std::string(text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin));
}

// It becomes a line of a request, so nothing in it may end that line.
Status CheckToken(const std::string& token, const std::string& where) {
  const bool is_plain = std::all_of(token.begin(), token.end(), [](char c) {
    return static_cast<unsigned char>(c) > 0x20 && static_cast<unsigned char>(c) < 0x7f;
  });
  if (is_plain && token.size() <= kMaxTokenBytes) return {};
  return MakeError("{}: is no token of the Hub (one word of letters and digits)", where);
}

Result<std::string> FindToken(const Environment& environment, const fs::path& home) {
  if (environment.IsTrue("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return std::string();
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    std::string token = Trim(environment.Get(name));
    if (token.empty()) continue;
    RETURN_IF_ERROR(CheckToken(token, name));
    return token;
  }
  fs::path path = environment.Path("HF_TOKEN_PATH");
  if (path.empty()) path = home / "token";
  std::error_code error;
  if (!fs::exists(path, error)) return std::string();
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxTokenBytes));
  std::string token = Trim(text);
  RETURN_IF_ERROR(CheckToken(token, path.string()));
  return token;
}

Status CheckEndpoint(const std::string& endpoint) {
  const auto url = net::Url::Parse(endpoint);
  if (url && !url->HasCredentials() && (url->Scheme() == "http" || url->Scheme() == "https")) {
    return {};
  }
  return MakeError("HF_ENDPOINT '{}': must be http(s)://HOST", endpoint.substr(0, 120));
}

}  // namespace

Result<HubSettings> HubSettings::FromEnvironment() {
  return FromEnvironment([](const char* name) -> const char* { return std::getenv(name); });
}

Result<HubSettings> HubSettings::FromEnvironment(
    const std::function<const char*(const char*)>& get) {
  const Environment environment(get);
  HubSettings settings;
  if (std::string endpoint = Trim(environment.Get("HF_ENDPOINT")); !endpoint.empty()) {
    while (endpoint.ends_with('/')) endpoint.pop_back();
    RETURN_IF_ERROR(CheckEndpoint(endpoint));
    settings.endpoint = std::move(endpoint);
  }
  fs::path home = environment.Path("HF_HOME");
  if (home.empty()) {
    fs::path caches = environment.Path("XDG_CACHE_HOME");
    if (caches.empty() && !environment.Get("HOME").empty()) {
      caches = fs::path(environment.Get("HOME")) / ".cache";
    }
    if (!caches.empty()) home = caches / "huggingface";
  }
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (settings.cache.empty()) settings.cache = environment.Path(name);
  }
  if (settings.cache.empty() && !home.empty()) settings.cache = home / "hub";
  if (settings.cache.empty()) {
    return MakeError("models cannot be kept: HOME is not set; HF_HOME can name a folder");
  }
  std::error_code error;
  settings.cache = fs::absolute(settings.cache, error);
  ASSIGN_OR_RETURN(settings.token, FindToken(environment, home));
  settings.is_offline =
      environment.IsTrue("HF_HUB_OFFLINE") || environment.IsTrue("TRANSFORMERS_OFFLINE");
  if (const std::string text = environment.Get("HF_HUB_DOWNLOAD_TIMEOUT"); !text.empty()) {
    int64_t seconds = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (problem != std::errc() || end != text.data() + text.size() || seconds < 1 ||
        seconds > kMaxTimeout) {
      return MakeError("HF_HUB_DOWNLOAD_TIMEOUT '{}': must be a number of seconds",
                       text.substr(0, 40));
    }
    settings.timeout = std::chrono::seconds(seconds);
  }
  return settings;
}

std::string HubSettings::Host() const {
  const auto url = net::Url::Parse(endpoint);
  return url ? url->Host() : endpoint;
}

}  // namespace lapidary::hub
