// `--device auto|cpu|cuda`, the same on every command that runs a model.
#pragma once

#include <CLI/CLI.hpp>

#include "device/device_choice.h"

namespace lapidary {

// Adds the flag; parsing stores the answer in `request`, which must outlive the command line and
// keeps its value when the flag is absent. Hand it to ChooseDevice().
CLI::Option* AddDeviceFlag(CLI::App* command, DeviceRequest* request);
// The same with a fourth choice, `simulated`.
CLI::Option* AddDeviceFlagWithSimulation(CLI::App* command, DeviceRequest* request);

}  // namespace lapidary
