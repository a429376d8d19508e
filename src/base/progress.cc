#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace lapidary {

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

void Progress::Draw(double seconds) {
  const double share = std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  const int filled = static_cast<int>(share * 30);
  const std::string bar = std::string(filled, '#') + std::string(30 - filled, '.');
  const double left = share > 0 ? seconds * (1 - share) / share : 0;
  const std::string amount = unit_ == Unit::kBytes
                                 ? fmt::format("{:.2f}/{:.2f} GB, {:.2f} GB/s", 1e-9 * done_,
                                               1e-9 * total_, 1e-9 * done_ / seconds)
                                 : fmt::format("{}/{}, {:.1f}/s", done_, total_, done_ / seconds);
  const std::string line =
      fmt::format("{} [{}] {:3.0f}% {}, {:.0f} s left", label_, bar, 100 * share, amount, left);
  if (is_terminal_) {
    std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace lapidary
