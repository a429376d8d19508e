#include "server/throughput_log.h"

#include <spdlog/spdlog.h>

namespace lapidary {

ThroughputLog::ThroughputLog(const Engine& engine)
    : engine_(engine), last_time_(std::chrono::steady_clock::now()), last_(engine.stats()) {}

void ThroughputLog::Tick() {
  const auto now = std::chrono::steady_clock::now();
  const EngineStats stats = engine_.stats();
  const double seconds = std::chrono::duration<double>(now - last_time_).count();
  if (stats.num_steps > last_.num_steps && seconds > 0.0) {
    const double num_outputs =
        static_cast<double>(stats.num_output_tokens - last_.num_output_tokens);
    const double num_rows = static_cast<double>(stats.num_rows - last_.num_rows);
    const SchedulerStats& scheduler = stats.scheduler;
    const int num_held = scheduler.num_pages - scheduler.num_free_pages;
    spdlog::info(
        "{:.1f} tokens/s generated, {:.1f} rows/s computed; {} running, {} waiting; KV pages "
        "{:.0f}% "
        "held, {:.0f}% by the prefix cache alone",
        num_outputs / seconds, num_rows / seconds, scheduler.num_running, scheduler.num_waiting,
        100.0 * num_held / std::max(scheduler.num_pages, 1),
        100.0 * scheduler.num_reclaimable_pages / std::max(scheduler.num_pages, 1));
    spdlog::debug("a step costs {}", stats.step_cost.ToString());
  }
  last_time_ = now;
  last_ = stats;
}

}  // namespace lapidary
