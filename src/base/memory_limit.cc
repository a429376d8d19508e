#include "base/memory_limit.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace lapidary {
namespace {

// "/system.slice/lapidary.service", as the group that its container began with sees it.
std::filesystem::path GroupOfThisProcess(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(4);
  }
  return {};
}

}  // namespace

int64_t MemoryLimit(const std::filesystem::path& root) {
  uint64_t limit = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  rlimit address_space{};
  if (getrlimit(RLIMIT_AS, &address_space) == 0) {
    limit = std::min<uint64_t>(limit, address_space.rlim_cur);
  }
  std::filesystem::path group = GroupOfThisProcess(root);
  while (true) {
    uint64_t of_group = 0;
    if (std::ifstream(root / "sys/fs/cgroup" / group / "memory.max") >> of_group) {  // or "max"
      limit = std::min(limit, of_group);
    }
    if (group.empty()) return static_cast<int64_t>(limit);
    group = group.parent_path();
  }
}

void ShareHeapIfLimited() {
  rlimit address_space{};
  const bool is_limited =
      getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY;
  if (is_limited) mallopt(M_ARENA_MAX, 1);
}

}  // namespace lapidary
