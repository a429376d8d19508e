// Work that needs every SM of a GPU at once takes turns.
//
// A kernel whose blocks wait for each other must have all of them on the GPU. Two such kernels on
// two streams could get half of the SMs each, and neither would end. Work of other kinds may run
// beside: it ends, and makes room.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>

#include "device/device_info.h"

namespace lapidary::cuda {

// What is queued on the stream while this lives begins when the turns before it, of any stream of
// the process, are done on the device. Other threads wait that long for their turn to queue, not
// for the device. The stream is not being captured at either end: a capture, and the launch of what
// it gave, lie in between.
class DeviceTurn {
 public:
  DeviceTurn(const DeviceInfo& device, cudaStream_t stream);
  DeviceTurn(const DeviceTurn&) = delete;
  DeviceTurn& operator=(const DeviceTurn&) = delete;
  ~DeviceTurn();

 private:
  struct LastTurn;
  static LastTurn& LastOn(int ordinal);

  LastTurn& last_;
  const std::lock_guard<std::mutex> lock_;
  const cudaStream_t stream_;
};

}  // namespace lapidary::cuda
