#include "load/quantisation_names.h"

#include <utility>

namespace lapidary {
namespace {

const std::pair<const char*, DType> kTypes[] = {{"q8_0", DType::kQ8_0},
                                                {"q4_0", DType::kQ4_0},
                                                {"q4_k", DType::kQ4_K},
                                                {"int8", DType::kQ8_0},
                                                {"fp8", DType::kF8E4M3}};

}  // namespace

const std::vector<std::string>& QuantisationNames() {
  static const auto* const names = [] {
    auto* list = new std::vector<std::string>();
    for (const auto& [name, type] : kTypes) list->push_back(name);
    return list;
  }();
  return *names;
}

std::optional<DType> QuantisationByName(const std::string& name) {
  for (const auto& [known, type] : kTypes) {
    if (name == known) return type;
  }
  return std::nullopt;
}

}  // namespace lapidary
