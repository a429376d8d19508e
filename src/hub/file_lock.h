// A lock that other processes see, huggingface_hub's among them: flock on a file that stays.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "base/result.h"

namespace lapidary::hub {

class FileLock {
 public:
  // Waits until the lock is ours. `on_wait` is called once if it has to wait, and `give_up` is
  // asked now and then meanwhile. Where the file system has no locks there is none, and two
  // processes fetch the same bytes twice.
  static Result<FileLock> Take(const std::filesystem::path& path,
                               const std::function<void()>& on_wait,
                               const std::function<bool()>& give_up);
  // Whether another process holds it now.
  static bool IsHeld(const std::filesystem::path& path);

  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) = delete;
  ~FileLock();

 private:
  explicit FileLock(int file) : file_(file) {}

  int file_;  // -1: none
};

}  // namespace lapidary::hub
