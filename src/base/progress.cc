#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace lapidary {
namespace {

// "8 s", "12 min", "1 h 05 min"
std::string TimeLeft(double seconds) {
  if (seconds < 100.0) return fmt::format("{:.0f} s", seconds);
  const auto minutes = static_cast<int64_t>(std::min(seconds, 1e9) / 60.0 + 0.5);
  if (minutes < 100) return fmt::format("{} min", minutes);
  return fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
}

}  // namespace

Progress::Progress(std::string label, int64_t total, Unit unit,
                   std::function<Clock::time_point()> now)
    : label_(std::move(label)),
      total_(std::max<int64_t>(total, 1)),
      unit_(unit),
      is_terminal_(isatty(STDERR_FILENO) == 1),
      now_(std::move(now)),
      start_(now_()) {}

Progress::~Progress() {
  if (drawn_ && is_terminal_) std::fputc('\n', stderr);
}

void Progress::Advance(int64_t amount) {
  const std::lock_guard lock(mutex_);
  done_ += amount;
  const double seconds = std::chrono::duration<double>(now_() - start_).count();
  if (seconds < 1.0) return;
  const int decile = static_cast<int>(10 * done_ / total_);
  const bool due =
      is_terminal_ ? seconds - last_draw_seconds_ > 0.1 || done_ >= total_ : decile > last_decile_;
  if (!due) return;
  last_draw_seconds_ = seconds;
  last_decile_ = decile;
  Draw(seconds);
}

void Progress::Skip(int64_t amount) {
  const std::lock_guard lock(mutex_);
  done_ += amount;
  skipped_ += amount;
}

void Progress::Draw(double seconds) {
  const double share =
      std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
  const double speed = static_cast<double>(done_ - skipped_) / seconds;
  const int filled = static_cast<int>(share * 30);
  const std::string bar = std::string(filled, '#') + std::string(30 - filled, '.');
  const double left = speed > 0 ? std::max(0.0, static_cast<double>(total_ - done_)) / speed : 0;
  const std::string amount =
      unit_ == Unit::kBytes ? fmt::format("{:.2f}/{:.2f} GB, {}", 1e-9 * done_, 1e-9 * total_,
                                          speed < 1e9 ? fmt::format("{:.1f} MB/s", 1e-6 * speed)
                                                      : fmt::format("{:.2f} GB/s", 1e-9 * speed))
                            : fmt::format("{}/{}, {:.1f}/s", done_, total_, speed);
  const std::string line =
      fmt::format("{} [{}] {:3.0f}% {}, {} left", label_, bar, 100 * share, amount, TimeLeft(left));
  if (is_terminal_) {
    std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace lapidary
