// A progress line on stderr for work that takes over a second.
//
// Nothing is printed for the first second, so quick work stays silent. On a terminal one line is
// redrawn; elsewhere (a log file) a line is written every ten per cent. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace lapidary {

class Progress {
 public:
  enum class Unit { kBytes, kItems };
  using Clock = std::chrono::steady_clock;

  Progress(std::string label, int64_t total, Unit unit,
           std::function<Clock::time_point()> now = Clock::now);
  ~Progress();  // Finishes the line if one was begun.
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // What was done; below 0 for what has to be done again.
  void Advance(int64_t amount);
  // What was there already: a part of the total, and of no speed.
  void Skip(int64_t amount);

 private:
  void Draw(double seconds);

  const std::string label_;
  const int64_t total_;
  const Unit unit_;
  const bool is_terminal_;
  const std::function<Clock::time_point()> now_;
  const Clock::time_point start_;
  std::mutex mutex_;
  int64_t done_ = 0;
  int64_t skipped_ = 0;  // of done_
  double last_draw_seconds_ = 0.0;
  int last_decile_ = 0;
  bool drawn_ = false;
};

}  // namespace lapidary
