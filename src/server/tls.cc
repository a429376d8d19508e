#include "server/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace lapidary {
namespace {

namespace ssl = boost::asio::ssl;

Status CheckReadable(const char* flag, const std::string& path) {
  std::ifstream file(path);
  char first = 0;
  if (!file) return MakeError("{} {}: {}", flag, path, std::strerror(errno));
  if (!file.get(first)) return MakeError("{} {}: cannot be read, or is empty", flag, path);
  return {};
}

// Reasons are numbered within their library.
bool Is(const boost::system::error_code& error, int library, int reason) {
  const auto code = static_cast<unsigned long>(error.value());
  return ERR_GET_LIB(code) == library && ERR_GET_REASON(code) == reason;
}

}  // namespace

Result<std::shared_ptr<ssl::context>> LoadTls(const TlsOptions& options) {
  if (options.certfile.empty() && options.keyfile.empty()) return std::shared_ptr<ssl::context>();
  if (options.certfile.empty()) return MakeError("--ssl-keyfile needs --ssl-certfile");
  // As elsewhere, one file may hold both.
  const std::string& keyfile = options.keyfile.empty() ? options.certfile : options.keyfile;
  const char* key_flag = options.keyfile.empty() ? "--ssl-certfile" : "--ssl-keyfile";
  RETURN_IF_ERROR(CheckReadable("--ssl-certfile", options.certfile));
  RETURN_IF_ERROR(CheckReadable(key_flag, keyfile));

  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
  boost::system::error_code error;
  context->use_certificate_chain_file(options.certfile, error);
  if (error) {
    return MakeError("--ssl-certfile {}: not a certificate in PEM form ({})", options.certfile,
                     error.message());
  }
  // Without a callback OpenSSL would ask on the terminal. It asks for encrypted keys alone: no
  // error code says as much, since one wrong password in 256 leaves bytes whose padding looks right
  // and which then fail as no key of any kind.
  const auto asked = std::make_shared<bool>(false);
  context->set_password_callback(
      [asked, password = options.keyfile_password](size_t, ssl::context::password_purpose) {
        *asked = true;
        return password;
      });
  context->use_private_key_file(keyfile, ssl::context::pem, error);
  if (error) {
    if (Is(error, ERR_LIB_X509, X509_R_KEY_VALUES_MISMATCH) ||
        Is(error, ERR_LIB_X509, X509_R_KEY_TYPE_MISMATCH)) {
      return MakeError("{} {}: the key does not belong to the certificate {}", key_flag, keyfile,
                       options.certfile);
    }
    if (*asked) {
      return MakeError("{} {}: the key is encrypted, and --ssl-keyfile-password is {}", key_flag,
                       keyfile, options.keyfile_password.empty() ? "missing" : "wrong");
    }
    if (options.keyfile.empty()) {
      return MakeError("--ssl-certfile {} holds no private key: --ssl-keyfile names its file",
                       keyfile);
    }
    return MakeError("{} {}: not a private key in PEM form ({})", key_flag, keyfile,
                     error.message());
  }
  return context;
}

}  // namespace lapidary
