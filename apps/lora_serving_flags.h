// Flags of a server with LoRA adapters, by vLLM's names.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "adapter/adapter_table.h"
#include "device/device_choice.h"
#include "server/adapter_requests.h"

namespace lapidary {

struct LoraServingFlags {
  bool enabled = false;
  std::vector<std::string> modules;  // NAME=DIR, or vLLM's JSON
  AdapterTableOptions limits;
  bool allows_runtime = false;
  std::string directory;  // of adapters loaded while the server runs

  std::vector<CLI::Option*> AddTo(CLI::App& command);
  // Null where adapters are not enabled. All of the named ones are read. `own_names`: the model's.
  Result<std::shared_ptr<AdapterTable>> Load(const ModelPlan& plan, const DeviceChoice& device,
                                             int num_ranks,
                                             const std::vector<std::string>& own_names) const;
  RuntimeAdapters Runtime() const { return {.is_allowed = allows_runtime, .directory = directory}; }
};

}  // namespace lapidary
