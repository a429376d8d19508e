#include "server/fetch_media.h"

#include <curl/curl.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>

#include "base/check.h"
#include "media/decode_audio.h"
#include "media/decode_image.h"
#include "server/media_hosts.h"
#include "server/public_address.h"

namespace lapidary {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kMaxTime{15};  // redirects included
constexpr std::chrono::seconds kMaxConnectTime{5};
constexpr int kMaxRedirects = 4;

struct UrlDeleter {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
struct EasyDeleter {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
using Url = std::unique_ptr<CURLU, UrlDeleter>;
using Easy = std::unique_ptr<CURL, EasyDeleter>;

std::string UrlPart(const Url& url, CURLUPart part) {
  char* text = nullptr;
  if (curl_url_get(url.get(), part, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return {};
  std::string copy(text);
  curl_free(text);
  return copy;
}

// One answer on its way.
struct Download {
  HostAccess access = HostAccess::kNone;
  size_t max_bytes = 0;
  std::string bytes = {};
  bool is_too_large = false;
  bool is_refused = false;  // an address was not public
};

// Called with each address of the host before anybody connects to it.
curl_socket_t OpenSocket(void* context, curlsocktype purpose, curl_sockaddr* address) {
  auto& download = *static_cast<Download*>(context);
  const bool may_connect = purpose == CURLSOCKTYPE_IPCXN &&
                           (download.access == HostAccess::kAny || IsPublicAddress(address->addr));
  if (!may_connect) {
    download.is_refused = true;
    return CURL_SOCKET_BAD;
  }
  return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

size_t Receive(const char* data, size_t size, size_t count, void* context) {
  auto& download = *static_cast<Download*>(context);
  const size_t num_bytes = size * count;
  if (num_bytes > download.max_bytes - download.bytes.size()) {
    download.is_too_large = true;
    return 0;  // ends the transfer
  }
  download.bytes.append(data, num_bytes);
  return num_bytes;
}

template <typename T>
void Set(const Easy& easy, CURLoption option, T value) {
  CHECK_EQ(curl_easy_setopt(easy.get(), option, value), CURLE_OK);
}

Easy MakeEasy(const Url& url, Clock::time_point deadline, Download* download) {
  static std::once_flag once;
  std::call_once(once, [] { CHECK_EQ(curl_global_init(CURL_GLOBAL_DEFAULT), CURLE_OK); });
  Easy easy(curl_easy_init());
  if (!easy) throw std::bad_alloc();
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  Set(easy, CURLOPT_CURLU, url.get());
  Set(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  Set(easy, CURLOPT_PROXY, "");
  Set(easy, CURLOPT_NOSIGNAL, 1L);
  Set(easy, CURLOPT_FOLLOWLOCATION, 0L);
  Set(easy, CURLOPT_USERAGENT, "lapidary");
  Set(easy, CURLOPT_TIMEOUT_MS, std::max<long>(left, 1));
  Set(easy, CURLOPT_CONNECTTIMEOUT_MS,
      static_cast<long>(std::chrono::milliseconds(kMaxConnectTime).count()));
  Set(easy, CURLOPT_OPENSOCKETFUNCTION, &OpenSocket);
  Set(easy, CURLOPT_OPENSOCKETDATA, download);
  Set(easy, CURLOPT_WRITEFUNCTION, &Receive);
  Set(easy, CURLOPT_WRITEDATA, download);
  return easy;
}

std::string Problem(CURLcode code, const Download& download) {
  if (download.is_too_large) return fmt::format("it has more than {} bytes", download.max_bytes);
  if (download.is_refused) return "its host has a private address";
  return curl_easy_strerror(code);
}

}  // namespace

ApiStatus FetchMedia(const std::vector<std::string>& allowed_hosts, const MediaPart& part,
                     std::string* file) {
  if (allowed_hosts.empty()) {
    return BadRequest(part.where,
                      "{} must be a data: URI; other addresses are not fetched "
                      "(--allowed-media-domains)",
                      part.where);
  }
  const auto deadline = Clock::now() + kMaxTime;
  std::string address = part.url;
  for (int num_redirects = 0; num_redirects <= kMaxRedirects; ++num_redirects) {
    // The same parser reads the address here and where it is fetched.
    const Url url(curl_url());
    if (!url || curl_url_set(url.get(), CURLUPART_URL, address.c_str(), 0) != CURLUE_OK) {
      return BadRequest(part.where, "{}: the address is no URL", part.where);
    }
    const std::string scheme = UrlPart(url, CURLUPART_SCHEME);
    const std::string host = UrlPart(url, CURLUPART_HOST);
    const bool has_credentials =
        !UrlPart(url, CURLUPART_USER).empty() || !UrlPart(url, CURLUPART_PASSWORD).empty();
    if ((scheme != "http" && scheme != "https") || has_credentials) {
      return BadRequest(part.where, "{}: the address must be http(s)://HOST/PATH", part.where);
    }
    Download download;
    download.access =
        FindMediaHost(allowed_hosts, host, std::atoi(UrlPart(url, CURLUPART_PORT).c_str()));
    if (download.access == HostAccess::kNone) {
      return BadRequest(part.where, "{}: nothing is fetched from '{}' (--allowed-media-domains)",
                        part.where, host.substr(0, 80));
    }
    download.max_bytes = static_cast<size_t>(
        part.kind == MediaKind::kImage ? ImageLimits{}.max_bytes : AudioLimits{}.max_bytes);
    const Easy easy = MakeEasy(url, deadline, &download);
    if (const CURLcode code = curl_easy_perform(easy.get()); code != CURLE_OK) {
      return BadRequest(part.where, "{}: the file could not be fetched: {}", part.where,
                        Problem(code, download));
    }
    long status = 0;
    const char* next = nullptr;
    curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(easy.get(), CURLINFO_REDIRECT_URL, &next);
    if (status == 200) {
      *file = std::move(download.bytes);
      return {};
    }
    if (next == nullptr) {
      return BadRequest(part.where, "{}: the file could not be fetched: its host answers {}",
                        part.where, status);
    }
    address = next;
  }
  return BadRequest(part.where, "{}: the file could not be fetched: more than {} redirects",
                    part.where, kMaxRedirects);
}

}  // namespace lapidary
