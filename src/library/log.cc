#include "library/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <mutex>

#include "base/version.h"
#include "lapidary/error.h"
#include "lapidary/session.h"

namespace lapidary {

void PrepareLog() {
  static std::once_flag once;
  std::call_once(once, [] {
    auto logger = std::make_shared<spdlog::logger>(
        "lapidary", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    logger->set_pattern("%H:%M:%S.%e %^%L%$ %v");
    logger->set_level(spdlog::level::warn);
    spdlog::set_default_logger(std::move(logger));
  });
}

void v0::SetLogLevel(const std::string& level) {
  const auto parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off") {
    throw InvalidInput("log level '" + level +
                       "' is not there; it must be off, error, warning or info");
  }
  PrepareLog();
  spdlog::set_level(parsed);
}

const char* v0::Version() { return kVersion; }

}  // namespace lapidary
