#include "net/curl.h"

#include <cstdlib>
#include <mutex>
#include <new>

namespace lapidary::net {

std::optional<Url> Url::Parse(const std::string& text) {
  Url url(curl_url());
  if (url.get() == nullptr) throw std::bad_alloc();
  // libcurl would read no further than a NUL.
  if (text.find('\0') != std::string::npos) return std::nullopt;
  if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) return std::nullopt;
  return url;
}

std::string Url::Part(CURLUPart part) const {
  char* text = nullptr;
  if (curl_url_get(url_.get(), part, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return {};
  std::string copy(text);
  curl_free(text);
  return copy;
}

int Url::Port() const { return std::atoi(Part(CURLUPART_PORT).c_str()); }

bool Url::HasCredentials() const {
  return !Part(CURLUPART_USER).empty() || !Part(CURLUPART_PASSWORD).empty();
}

bool Url::IsSameOrigin(const Url& other) const {
  return Scheme() == other.Scheme() && Host() == other.Host() && Port() == other.Port();
}

Easy MakeEasy() {
  static std::once_flag once;
  std::call_once(once, [] { CHECK_EQ(curl_global_init(CURL_GLOBAL_DEFAULT), CURLE_OK); });
  Easy easy(curl_easy_init());
  if (!easy) throw std::bad_alloc();
  return easy;
}

void SetCommonOptions(const Easy& easy, const Url& url) {
  Set(easy, CURLOPT_CURLU, url.get());
  Set(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  Set(easy, CURLOPT_FOLLOWLOCATION, 0L);
  Set(easy, CURLOPT_NOSIGNAL, 1L);
  Set(easy, CURLOPT_USERAGENT, "lapidary");
  if (const char* certificates = std::getenv("SSL_CERT_FILE"); certificates != nullptr) {
    Set(easy, CURLOPT_CAINFO, certificates);
  }
}

}  // namespace lapidary::net
