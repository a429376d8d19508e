#include "apps/quantisation_flag.h"

namespace lapidary {

std::vector<std::string> QuantisationNames() { return {"q8_0", "q4_0", "q4_k"}; }

DType QuantisationType(const std::string& name) {
  return name == "q4_0" ? DType::kQ4_0 : name == "q4_k" ? DType::kQ4_K : DType::kQ8_0;
}

CLI::Option* QuantisationFlag::AddTo(CLI::App& command) {
  return command
      .add_option(
          "--quantization", type,
          "Round matrices to blocks of 8.5 (q8_0) or 4.5 (q4_0, and q4_k, slower and closer) bits "
          "a weight while loading (CPU); default: as they are stored")
      ->check(CLI::IsMember(QuantisationNames()));
}

CLI::Option* QuantisationFlag::AddFastMathTo(CLI::App& command) {
  return command.add_flag(
      "--fast-math", fast_math,
      "Round activations to 8 bits where weights are in blocks: faster, and not "
      "exact (CPU)");
}

std::optional<DType> QuantisationFlag::Type() const {
  if (type.empty()) return std::nullopt;
  return QuantisationType(type);
}

}  // namespace lapidary
