#include "hub/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace lapidary::hub {
namespace {

// Group members may share a cache, and wait for each other; as huggingface_hub has it.
constexpr mode_t kMode = 0664;
constexpr std::chrono::milliseconds kPause{100};

// Whether the path still leads to the file that was opened.
bool IsStill(int file, const std::filesystem::path& path) {
  struct stat opened {};
  struct stat named {};
  return fstat(file, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

}  // namespace

Result<FileLock> FileLock::Take(const std::filesystem::path& path,
                                const std::function<void()>& on_wait,
                                const std::function<bool()>& give_up) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  bool has_waited = false;
  while (true) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode);
    if (file < 0) return MakeError("{}: cannot be written: {}", path.string(), strerror(errno));
    FileLock lock(file);
    if (flock(file, LOCK_EX | LOCK_NB) == 0) {
      if (IsStill(file, path)) return lock;
      continue;  // somebody removed it meanwhile
    }
    if (errno != EWOULDBLOCK && errno != EINTR) return lock;
    if (give_up()) return MakeError("interrupted while another process had {}", path.string());
    if (!std::exchange(has_waited, true)) on_wait();
    std::this_thread::sleep_for(kPause);
  }
}

bool FileLock::IsHeld(const std::filesystem::path& path) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return false;
  const FileLock lock(file);
  return flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

FileLock::FileLock(FileLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}

FileLock::~FileLock() {
  if (file_ >= 0) close(file_);
}

}  // namespace lapidary::hub
