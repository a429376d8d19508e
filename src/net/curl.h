// libcurl with owners: what every transfer of ours begins with.
#pragma once

#include <curl/curl.h>

#include <memory>
#include <optional>
#include <string>

#include "base/check.h"

namespace lapidary::net {

// A URL as libcurl reads it, so that what is checked is what is fetched.
class Url {
 public:
  // Nothing where the text is no absolute URL.
  static std::optional<Url> Parse(const std::string& text);

  // Empty where there is none; the port is the scheme's own unless the URL names one; the host of
  // an IPv6 address is in brackets.
  std::string Part(CURLUPart part) const;
  std::string Scheme() const { return Part(CURLUPART_SCHEME); }
  std::string Host() const { return Part(CURLUPART_HOST); }
  int Port() const;
  bool HasCredentials() const;
  // Scheme, host and port are the same.
  bool IsSameOrigin(const Url& other) const;

  CURLU* get() const { return url_.get(); }

 private:
  struct Deleter {
    void operator()(CURLU* url) const { curl_url_cleanup(url); }
  };
  explicit Url(CURLU* url) : url_(url) {}

  std::unique_ptr<CURLU, Deleter> url_;
};

struct EasyDeleter {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
using Easy = std::unique_ptr<CURL, EasyDeleter>;

// A handle, with libcurl set up once for the process. Throws where there is no memory.
Easy MakeEasy();

// An option that every libcurl we build with has.
template <typename T>
void Set(const Easy& easy, CURLoption option, T value) {
  CHECK_EQ(curl_easy_setopt(easy.get(), option, value), CURLE_OK);
}

// What every transfer of ours has: http and https alone, no redirect that is not looked at first,
// no signals, our name, the certificates that $SSL_CERT_FILE names if it is set. `url` must outlive
// the transfer.
void SetCommonOptions(const Easy& easy, const Url& url);

}  // namespace lapidary::net
