// --kv-cache-dtype: the format in which keys and values are cached.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

#include "model/kv_format.h"

namespace lapidary {

struct KvCacheFlag {
  std::optional<KvFormat> format;  // absent: auto

  CLI::Option* AddTo(CLI::App& command);
};

}  // namespace lapidary
