// Work beside a stream's own: it begins when what is queued there is done, and whoever needs its
// results waits for it. Both may be captured in the stream's graph.
#pragma once

#include "device/device_memory.h"

namespace lapidary::cuda {

class SideStream {
 public:
  cudaStream_t get() const { return stream_.get(); }

  void ForkFrom(cudaStream_t stream) {
    forked_.Record(stream);
    forked_.MakeWait(stream_.get());
  }
  // What was queued here since the fork; to be waited for before the next one.
  const Event& End() {
    ended_.Record(stream_.get());
    return ended_;
  }

 private:
  Stream stream_;
  Event forked_;
  Event ended_;
};

}  // namespace lapidary::cuda
