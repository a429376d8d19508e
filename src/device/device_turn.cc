#include "device/device_turn.h"

#include <map>

#include "device/device_memory.h"
#include "device/device_scope.h"

namespace lapidary::cuda {

struct DeviceTurn::LastTurn {
  std::mutex mutex;
  Event done;
  cudaStream_t stream = nullptr;  // null: there was none
};

DeviceTurn::LastTurn& DeviceTurn::LastOn(int ordinal) {
  static std::mutex mutex;
  static std::map<int, LastTurn> last_turns;
  const std::lock_guard lock(mutex);
  const DeviceScope scope(ordinal);  // for the event
  return last_turns[ordinal];
}

DeviceTurn::DeviceTurn(const DeviceInfo& device, cudaStream_t stream)
    : last_(LastOn(device.ordinal)), lock_(last_.mutex), stream_(stream) {
  // A stream is in order with itself.
  if (last_.stream != nullptr && last_.stream != stream) last_.done.MakeWait(stream);
}

DeviceTurn::~DeviceTurn() {
  // An event that cannot be recorded is of a device that has failed: the next call will say so.
  (void)cudaEventRecord(last_.done.get(), stream_);
  last_.stream = stream_;
}

}  // namespace lapidary::cuda
