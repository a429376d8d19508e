#include "base/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace lapidary {
namespace {

// Closes the file at the end of its scope.
struct OpenFile {
  int fd;
  ~OpenFile() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

Result<std::string> ReadFile(const std::filesystem::path& path, size_t max_bytes) {
  // Without waiting: a pipe that nobody writes to must be refused, not waited for.
  const OpenFile file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return MakeError("cannot open {}: {}", path.string(), std::strerror(errno));
  struct stat info {};
  if (fstat(file.fd, &info) != 0) {
    return MakeError("cannot read {}: {}", path.string(), std::strerror(errno));
  }
  if (S_ISDIR(info.st_mode)) return MakeError("cannot read {}: it is a directory", path.string());
  if (!S_ISREG(info.st_mode)) return MakeError("cannot read {}: not a regular file", path.string());
  const auto file_bytes = static_cast<uintmax_t>(info.st_size);
  if (file_bytes > max_bytes) {
    return MakeError("cannot read {}: it has {} bytes and at most {} are read", path.string(),
                     file_bytes, max_bytes);
  }

  // A byte more than the file has, so that a whole one needs no second buffer; a file that grows,
  // or whose size the system does not know (/proc), takes more.
  std::string text(static_cast<size_t>(file_bytes) + 1, '\0');
  size_t num_read = 0;
  while (true) {
    const ssize_t got = read(file.fd, text.data() + num_read, text.size() - num_read);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return MakeError("cannot read {}: {}", path.string(), std::strerror(errno));
    if (got == 0) break;
    num_read += static_cast<size_t>(got);
    if (num_read > max_bytes) {
      return MakeError("cannot read {}: it has at least {} bytes and at most {} are read",
                       path.string(), num_read, max_bytes);
    }
    if (num_read == text.size()) text.resize(std::min(2 * text.size() + 4096, max_bytes + 1));
  }
  text.resize(num_read);
  return text;
}

}  // namespace lapidary
