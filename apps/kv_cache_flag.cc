#include "apps/kv_cache_flag.h"

namespace lapidary {

CLI::Option* KvCacheFlag::AddTo(CLI::App& command) {
  return command
      .add_option_function<std::string>(
          "--kv-cache-dtype",
          [this](const std::string& name) {
            if (name == "auto") {
              format.reset();
              return;
            }
            const Result<KvFormat> parsed = ParseKvFormat(name);
            if (!parsed.ok())
              throw CLI::ValidationError("--kv-cache-dtype", parsed.error().message);
            format = *parsed;
          },
          "Format of cached keys and values: float32, bfloat16, int8 or fp8, the last two with a "
          "scale for 128 values; answers change by what rounding loses, with fp8 more than with "
          "int8 (default: auto, float32 on the CPU and bfloat16 on a GPU, which has no other yet)")
      ->type_name("NAME");
}

}  // namespace lapidary
