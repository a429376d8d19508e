#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace lapidary {

Result<MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return MakeError("cannot open {}: {}", path.string(), std::strerror(errno));
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return MakeError("cannot read {}: not a regular file", path.string());
  }
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) {
    close(fd);
    return MappedFile();
  }
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int map_errno = errno;
  close(fd);  // The mapping keeps the file alive.
  if (data == MAP_FAILED) {
    return MakeError("cannot map {}: {}", path.string(), std::strerror(map_errno));
  }
  return MappedFile(static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void PrefaultMapped(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size();
  // What is read as a whole, step after step, wants huge pages. File systems whose cache can hold
  // them read whole ones when such a range is faulted in (not when MADV_WILLNEED asks); others
  // ignore it.
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const uintptr_t huge_begin = begin / kHugePage * kHugePage;
  const uintptr_t huge_end = (end + kHugePage - 1) / kHugePage * kHugePage;
  madvise(reinterpret_cast<void*>(huge_begin), huge_end - huge_begin, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_READ
  if (madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ) == 0) return;
#endif
  // Ask for the next piece before faulting the current one in, so that the disk never waits for us.
  constexpr uintptr_t kPiece = uintptr_t{8} << 20;
  for (uintptr_t piece = begin; piece < end; piece += kPiece) {
    const uintptr_t piece_end = std::min(piece + kPiece, end);
    const uintptr_t ahead_end = std::min(piece_end + kPiece, end);
    if (ahead_end > piece_end) {
      madvise(reinterpret_cast<void*>(piece_end / page * page), ahead_end - piece_end,
              MADV_WILLNEED);
    }
    for (uintptr_t address = piece; address < piece_end; address += page) {
      static_cast<void>(*reinterpret_cast<const volatile char*>(address));
    }
  }
}

}  // namespace lapidary
