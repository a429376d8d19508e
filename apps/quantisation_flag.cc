#include "apps/quantisation_flag.h"

namespace lapidary {

std::vector<std::string> StoredQuantisationNames() { return {"q8_0", "q4_0", "q4_k"}; }

DType QuantisationType(const std::string& name) {
  if (name == "q4_0") return DType::kQ4_0;
  if (name == "q4_k") return DType::kQ4_K;
  return name == "fp8" ? DType::kF8E4M3 : DType::kQ8_0;
}

CLI::Option* QuantisationFlag::AddTo(CLI::App& command) {
  return command
      .add_option(
          "--quantization", type,
          "Round matrices while loading: to blocks of 8.5 (q8_0, which int8 is too) or 4.5 (q4_0) "
          "bits a weight; on the CPU also q4_k, slower and closer than q4_0, and fp8, 8 bits and a "
          "scale for each row; default: as they are stored")
      ->check(CLI::IsMember({"q8_0", "q4_0", "q4_k", "int8", "fp8"}));
}

CLI::Option* QuantisationFlag::AddHeadBitsTo(CLI::App& command) {
  return command
      .add_option(
          "--head-bits", head_bits,
          "Bits of the head, which are the token embeddings where it has none of its own: 4 "
          "or 8 (blocks as of --quantization), 6 (Q6_K, on the CPU), 16 (as stored); "
          "default: 8 beside q8_0, q4_0 and q4_k, else as stored")
      ->check(CLI::IsMember({4, 6, 8, 16}));
}

CLI::Option* QuantisationFlag::AddFastMathTo(CLI::App& command) {
  return command.add_flag(
      "--fast-math", fast_math,
      "Round activations to 8 bits where weights are in blocks, and to bf16 where weights are and "
      "the processor has AMX: faster, and not exact (CPU)");
}

std::optional<DType> QuantisationFlag::Type() const {
  if (type.empty()) return std::nullopt;
  return QuantisationType(type);
}

}  // namespace lapidary
