// `--simulate CARD` and `--simulate-speed`: what a simulated device passes for.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/device_choice.h"
#include "executor/simulated/simulated_executor.h"

namespace lapidary {

struct SimulationFlags {
  std::string card;
  double speed = 1.0;

  // The options added, so that a command may tie environment variables to them.
  std::vector<CLI::Option*> AddTo(CLI::App& command);
  // Refuses a card where no device is simulated. Presets, whose weights are not read, are given the
  // tokenizer of the bundled model where `tokenizer` is empty.
  Status Complete(DeviceRequest device, const std::string& model, std::string* tokenizer);
  simulated::SimulationOptions Options() const;
};

}  // namespace lapidary
