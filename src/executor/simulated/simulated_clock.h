// The time of a simulated device, in milliseconds since some beginning.
#pragma once

#include <chrono>
#include <thread>

namespace lapidary::simulated {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual double NowMs() = 0;
  virtual void WaitUntilMs(double ms) = 0;
};

// Goes `speed` times as fast as the clock on the wall.
class ScaledClock : public Clock {
 public:
  explicit ScaledClock(double speed) : speed_(speed) {}

  double NowMs() override {
    return speed_ * std::chrono::duration<double, std::milli>(WallClock::now() - start_).count();
  }
  void WaitUntilMs(double ms) override {
    const std::chrono::duration<double, std::milli> since_start(ms / speed_);
    std::this_thread::sleep_until(start_ +
                                  std::chrono::duration_cast<WallClock::duration>(since_start));
  }

 private:
  using WallClock = std::chrono::steady_clock;
  const double speed_;
  const WallClock::time_point start_ = WallClock::now();
};

// Stands still unless it is set: whoever drives the executor keeps the time.
class ManualClock : public Clock {
 public:
  double NowMs() override { return now_ms_; }
  void WaitUntilMs(double ms) override { now_ms_ = ms > now_ms_ ? ms : now_ms_; }
  void Set(double ms) { now_ms_ = ms; }

 private:
  double now_ms_ = 0.0;
};

}  // namespace lapidary::simulated
