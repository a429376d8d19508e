#include "towers/content_digest.h"

#include <openssl/evp.h>

#include <cstring>
#include <memory>
#include <new>

namespace lapidary {

ContentDigest DigestContent(std::span<const std::byte> data, std::initializer_list<int64_t> facts) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  unsigned char bytes[EVP_MAX_MD_SIZE];
  const bool is_made =
      context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1 &&
      EVP_DigestUpdate(context.get(), facts.begin(), facts.size() * sizeof(int64_t)) == 1 &&
      EVP_DigestUpdate(context.get(), data.data(), data.size()) == 1 &&
      EVP_DigestFinal_ex(context.get(), bytes, nullptr) == 1;
  if (!is_made) throw std::bad_alloc();  // It fails for nothing else.
  ContentDigest digest;
  std::memcpy(&digest.low, bytes, sizeof(digest.low));
  std::memcpy(&digest.high, bytes + sizeof(digest.low), sizeof(digest.high));
  return digest;
}

}  // namespace lapidary
