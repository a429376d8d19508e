// The numbers of a GGUF file's metadata that belong to one architecture.
#pragma once

#include <string>
#include <vector>

#include "gguf/gguf_checkpoint.h"

namespace lapidary {

// Reads "<architecture>.<name>" values, keeping the first problem.
class ConfigKeys {
 public:
  ConfigKeys(const GgufCheckpoint& checkpoint, std::string_view architecture)
      : checkpoint_(checkpoint), prefix_(fmt::format("{}.", architecture)) {}

  int64_t Int(const char* name) {
    const auto value = checkpoint_.Int(prefix_ + name);
    if (!value) Fail("{}: {}{} must be an integer", checkpoint_.path().string(), prefix_, name);
    return value.value_or(0);
  }
  int64_t IntOr(const char* name, int64_t fallback) {
    return checkpoint_.Value(prefix_ + name) == nullptr ? fallback : Int(name);
  }
  double Number(const char* name) {
    const auto value = checkpoint_.Number(prefix_ + name);
    if (!value) Fail("{}: {}{} must be a number", checkpoint_.path().string(), prefix_, name);
    return value.value_or(0.0);
  }
  double NumberOr(const char* name, double fallback) {
    return checkpoint_.Value(prefix_ + name) == nullptr ? fallback : Number(name);
  }
  // One for each layer: an array, or one value for all.
  std::vector<int64_t> PerLayer(const char* name, int64_t num_layers) {
    const GgufValue* value = checkpoint_.Value(prefix_ + name);
    const auto values = value == nullptr ? std::nullopt : value->Ints();
    if (values && !value->is_array()) return std::vector<int64_t>(num_layers, values->front());
    if (values && static_cast<int64_t>(values->size()) == num_layers) return *values;
    Fail("{}: {}{} must be an integer or {} of them, one for each layer",
         checkpoint_.path().string(), prefix_, name, num_layers);
    return std::vector<int64_t>(num_layers, 0);
  }
  template <typename... Args>
  void Fail(fmt::format_string<Args...> format, Args&&... args) {
    if (status_.ok()) status_ = MakeError(format, std::forward<Args>(args)...);
  }
  const Status& status() const { return status_; }

 private:
  const GgufCheckpoint& checkpoint_;
  std::string prefix_;
  Status status_;
};

}  // namespace lapidary
