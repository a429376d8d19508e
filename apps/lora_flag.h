// --lora DIR[=SCALE]: a LoRA adapter that a command runs its model with.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "adapter/adapter.h"
#include "device/device_choice.h"

namespace lapidary {

struct LoraFlag {
  std::string text;  // empty: none

  CLI::Option* AddTo(CLI::App& command);
  // Logs what is applied; null where none was asked for.
  Result<std::shared_ptr<const Adapter>> Load(const ModelPlan& plan) const;
};

// Where adapters do not run.
Error NoAdaptersHere();
Status CheckTakesAdapters(const DeviceChoice& device, int num_ranks);

}  // namespace lapidary
