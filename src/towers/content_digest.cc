#include "towers/content_digest.h"

#include <openssl/evp.h>

#include <cstring>
#include <memory>

#include "base/check.h"

namespace lapidary {

ContentDigest DigestContent(std::span<const std::byte> data, std::initializer_list<int64_t> facts) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  CHECK(context != nullptr);
  CHECK_EQ(EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr), 1);
  CHECK_EQ(EVP_DigestUpdate(context.get(), facts.begin(), facts.size() * sizeof(int64_t)), 1);
  CHECK_EQ(EVP_DigestUpdate(context.get(), data.data(), data.size()), 1);
  unsigned char bytes[EVP_MAX_MD_SIZE];
  CHECK_EQ(EVP_DigestFinal_ex(context.get(), bytes, nullptr), 1);
  ContentDigest digest;
  std::memcpy(&digest.low, bytes, sizeof(digest.low));
  std::memcpy(&digest.high, bytes + sizeof(digest.low), sizeof(digest.high));
  return digest;
}

}  // namespace lapidary
