#include "base/background.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lapidary {

void RunInBackground() {
  constexpr int kNice = 10;
  // Linux keeps this by thread. Where it is refused, the thread stays as it was.
  static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice));
}

}  // namespace lapidary
