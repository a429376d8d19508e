#include "hub/blob_sum.h"

#include <openssl/evp.h>

#include <cstdio>
#include <memory>
#include <vector>

namespace lapidary::hub {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

struct ContextDeleter {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::string Hex(const unsigned char* bytes, size_t num_bytes) {
  std::string text;
  for (size_t index = 0; index < num_bytes; ++index) text += fmt::format("{:02x}", bytes[index]);
  return text;
}

}  // namespace

Result<std::string> SumOfFile(const std::filesystem::path& path, int64_t num_bytes,
                              std::string_view blob_name,
                              const std::function<bool(int64_t num_read)>& on_read) {
  const bool is_git = blob_name.size() == 40;
  const std::unique_ptr<EVP_MD_CTX, ContextDeleter> context(EVP_MD_CTX_new());
  CHECK(context != nullptr &&
        EVP_DigestInit_ex(context.get(), is_git ? EVP_sha1() : EVP_sha256(), nullptr) == 1);
  const auto add = [&](const void* bytes, size_t count) {
    CHECK(EVP_DigestUpdate(context.get(), bytes, count) == 1);
  };
  if (is_git) {
    const std::string head = fmt::format("blob {}", num_bytes);
    add(head.c_str(), head.size() + 1);
  }
  const std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "rb"));
  if (!file) return MakeError("{}: cannot be read", path.string());
  std::vector<char> buffer(kBufferBytes);
  for (int64_t num_left = num_bytes; num_left > 0;) {
    const size_t wanted = std::min(static_cast<size_t>(num_left), buffer.size());
    const size_t num_read = std::fread(buffer.data(), 1, wanted, file.get());
    if (num_read == 0) return MakeError("{}: is shorter than {} bytes", path.string(), num_bytes);
    add(buffer.data(), num_read);
    num_left -= static_cast<int64_t>(num_read);
    if (!on_read(static_cast<int64_t>(num_read))) return MakeError("interrupted");
  }
  unsigned char sum[EVP_MAX_MD_SIZE] = {};
  unsigned int sum_bytes = 0;
  CHECK(EVP_DigestFinal_ex(context.get(), sum, &sum_bytes) == 1);
  return Hex(sum, sum_bytes);
}

}  // namespace lapidary::hub
