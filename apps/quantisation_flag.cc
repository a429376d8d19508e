#include "apps/quantisation_flag.h"

namespace lapidary {

CLI::Option* QuantisationFlag::AddTo(CLI::App& command) {
  return command
      .add_option(
          "--quantization", type,
          "Round matrices to blocks of 8.5 (q8_0) or 4.5 (q4_0) bits a weight while loading "
          "(CPU); default: as they are stored")
      ->check(CLI::IsMember({"q8_0", "q4_0"}));
}

std::optional<DType> QuantisationFlag::Type() const {
  if (type.empty()) return std::nullopt;
  return type == "q4_0" ? DType::kQ4_0 : DType::kQ8_0;
}

}  // namespace lapidary
