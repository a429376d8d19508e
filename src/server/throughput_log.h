// Every few seconds, while there is work, one line on how it goes.
#pragma once

#include <chrono>

#include "engine/engine.h"

namespace lapidary {

class ThroughputLog {
 public:
  // `engine` must outlive this.
  explicit ThroughputLog(const Engine& engine);

  // Says what happened since the last call, if anything did.
  void Tick();

 private:
  const Engine& engine_;
  std::chrono::steady_clock::time_point last_time_;
  EngineStats last_;
};

}  // namespace lapidary
