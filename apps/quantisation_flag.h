// --quantization and --head-bits: the types that weights are rounded to while they are loaded; and
// --fast-math, what products with weights in blocks may lose.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace lapidary {

// The types that weights can be rounded to in a file, by name; --quantization has two more.
std::vector<std::string> StoredQuantisationNames();
DType QuantisationType(const std::string& name);

struct QuantisationFlag {
  std::string type;  // empty: as they are stored
  int head_bits = 0;
  bool fast_math = false;

  CLI::Option* AddTo(CLI::App& command);
  CLI::Option* AddHeadBitsTo(CLI::App& command);
  CLI::Option* AddFastMathTo(CLI::App& command);
  std::optional<DType> Type() const;
};

}  // namespace lapidary
