#include "server/fetch_media.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "media/decode_audio.h"
#include "media/decode_image.h"
#include "net/curl.h"
#include "server/media_hosts.h"
#include "server/public_address.h"

namespace lapidary {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kMaxTime{15};  // redirects included
constexpr std::chrono::seconds kMaxConnectTime{5};
constexpr int kMaxRedirects = 4;

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

net::Easy MakeTransfer(const net::Url& url, Clock::time_point deadline, Download* download) {
  using net::Set;
  net::Easy easy = net::MakeEasy();
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  net::SetCommonOptions(easy, url);
  Set(easy, CURLOPT_PROXY, "");
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
    const std::optional<net::Url> url = net::Url::Parse(address);
    if (!url) return BadRequest(part.where, "{}: the address is no URL", part.where);
    const std::string scheme = url->Scheme();
    const std::string host = url->Host();
    if ((scheme != "http" && scheme != "https") || url->HasCredentials()) {
      return BadRequest(part.where, "{}: the address must be http(s)://HOST/PATH", part.where);
    }
    Download download;
    download.access = FindMediaHost(allowed_hosts, host, url->Port());
    if (download.access == HostAccess::kNone) {
      return BadRequest(part.where, "{}: nothing is fetched from '{}' (--allowed-media-domains)",
                        part.where, host.substr(0, 80));
    }
    download.max_bytes = static_cast<size_t>(
        part.kind == MediaKind::kImage ? ImageLimits{}.max_bytes : AudioLimits{}.max_bytes);
    const net::Easy easy = MakeTransfer(*url, deadline, &download);
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
