// A checkpoint's generation_config.json and config.json: any bytes give settings or an error.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "base/check.h"
#include "sampling/generation_config.h"

// The input is the two files with a zero byte between them; without one, config.json is absent.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t separator = input.find('\0');
  std::optional<std::string_view> config;
  if (separator != std::string_view::npos) config = input.substr(separator + 1);
  const auto defaults = lapidary::GenerationDefaults::Parse(input.substr(0, separator), config);
  if (!defaults.ok()) return 0;
  CHECK(defaults->sampling.Validate(std::numeric_limits<int32_t>::max()).ok());
  for (const int32_t id : defaults->stop_ids) CHECK_GE(id, 0);
  return 0;
}
