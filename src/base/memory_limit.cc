#include "base/memory_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace lapidary {

int64_t MemoryLimit() {
  uint64_t limit = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  rlimit address_space{};
  if (getrlimit(RLIMIT_AS, &address_space) == 0) {
    limit = std::min<uint64_t>(limit, address_space.rlim_cur);
  }
  uint64_t of_container = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> of_container) {  // a number or "max"
    limit = std::min(limit, of_container);
  }
  return static_cast<int64_t>(limit);
}

}  // namespace lapidary
