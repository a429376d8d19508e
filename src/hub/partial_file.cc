#include "hub/partial_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

namespace lapidary::hub {
namespace {

constexpr char kMark[16] = "lapidary part 1";

// Whether all bytes could be read.
bool ReadAt(int file, void* bytes, size_t num_bytes, int64_t offset) {
  auto* at = static_cast<char*>(bytes);
  while (num_bytes > 0) {
    const ssize_t num_read = pread(file, at, num_bytes, offset);
    if (num_read < 0 && errno == EINTR) continue;
    if (num_read <= 0) return false;
    at += num_read;
    offset += num_read;
    num_bytes -= static_cast<size_t>(num_read);
  }
  return true;
}

}  // namespace

PartialFile::PartialFile(int file, std::filesystem::path path, int64_t num_bytes,
                         int64_t piece_bytes)
    : file_(file),
      path_(std::move(path)),
      num_bytes_(num_bytes),
      piece_bytes_(piece_bytes),
      counts_((num_bytes + piece_bytes - 1) / piece_bytes) {}

PartialFile::PartialFile(PartialFile&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      path_(std::move(other.path_)),
      num_bytes_(other.num_bytes_),
      piece_bytes_(other.piece_bytes_),
      counts_(std::move(other.counts_)) {}

PartialFile::~PartialFile() {
  if (file_ >= 0) close(file_);
}

Result<PartialFile> PartialFile::Open(const std::filesystem::path& path, int64_t num_bytes,
                                      int64_t piece_bytes) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file < 0) return MakeError("{}: cannot be written: {}", path.string(), strerror(errno));
  PartialFile partial(file, path, num_bytes, piece_bytes);
  if (!partial.ReadCounts()) RETURN_IF_ERROR(partial.Reset());
  return partial;
}

int64_t PartialFile::BytesThere(const std::filesystem::path& path, int64_t num_bytes,
                                int64_t piece_bytes) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return 0;
  PartialFile partial(file, path, num_bytes, piece_bytes);
  return partial.ReadCounts() ? partial.num_written() : 0;
}

int64_t PartialFile::PieceLength(int piece) const {
  return std::min(piece_bytes_, num_bytes_ - piece * piece_bytes_);
}

int64_t PartialFile::num_written() const {
  return std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
}

PartialFile::Range PartialFile::Missing(int piece) const {
  const int64_t begin = piece * piece_bytes_;
  return {begin + counts_[piece], begin + PieceLength(piece)};
}

bool PartialFile::ReadCounts() {
  const int64_t counts_bytes = num_pieces() * static_cast<int64_t>(sizeof(int64_t));
  struct stat info {};
  if (fstat(file_, &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_size != num_bytes_ + counts_bytes + static_cast<int64_t>(sizeof(kMark))) {
    return false;
  }
  char mark[sizeof(kMark)] = {};
  if (!ReadAt(file_, mark, sizeof(mark), num_bytes_ + counts_bytes) ||
      std::memcmp(mark, kMark, sizeof(mark)) != 0 ||
      !ReadAt(file_, counts_.data(), static_cast<size_t>(counts_bytes), num_bytes_)) {
    return false;
  }
  for (int piece = 0; piece < num_pieces(); ++piece) {
    if (counts_[piece] < 0 || counts_[piece] > PieceLength(piece)) return false;
  }
  return true;
}

Status PartialFile::Write(std::string_view bytes, int64_t offset) const {
  while (!bytes.empty()) {
    const ssize_t num_written = pwrite(file_, bytes.data(), bytes.size(), offset);
    if (num_written < 0 && errno == EINTR) continue;
    if (num_written < 0) {
      return MakeError("{}: cannot be written: {}", path_.string(), strerror(errno));
    }
    bytes.remove_prefix(static_cast<size_t>(num_written));
    offset += num_written;
  }
  return {};
}

Status PartialFile::WriteCount(int piece) const {
  return Write({reinterpret_cast<const char*>(&counts_[piece]), sizeof(int64_t)},
               num_bytes_ + piece * static_cast<int64_t>(sizeof(int64_t)));
}

Status PartialFile::Append(int piece, std::string_view bytes) {
  const Range missing = Missing(piece);
  CHECK(static_cast<int64_t>(bytes.size()) <= missing.size());
  RETURN_IF_ERROR(Write(bytes, missing.begin));
  counts_[piece] += static_cast<int64_t>(bytes.size());
  return WriteCount(piece);
}

Status PartialFile::Reset() {
  std::fill(counts_.begin(), counts_.end(), 0);
  // From nothing, so that what was there leaves the disk and the counts are zeros.
  const int64_t counts_bytes = num_pieces() * static_cast<int64_t>(sizeof(int64_t));
  if (ftruncate(file_, 0) != 0 || ftruncate(file_, num_bytes_ + counts_bytes) != 0) {
    return MakeError("{}: cannot be written: {}", path_.string(), strerror(errno));
  }
  return Write({kMark, sizeof(kMark)}, num_bytes_ + counts_bytes);
}

Status PartialFile::Finish() {
  CHECK(is_complete());
  if (ftruncate(file_, num_bytes_) != 0 || fsync(file_) != 0) {
    return MakeError("{}: cannot be written: {}", path_.string(), strerror(errno));
  }
  return {};
}

}  // namespace lapidary::hub
