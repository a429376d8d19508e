#include "apps/device_flag.h"

#include <string>
#include <vector>

namespace lapidary {
namespace {

CLI::Option* Add(CLI::App* command, DeviceRequest* request, const std::string& help,
                 const std::vector<std::string>& names) {
  const auto store = [request](const std::string& name) {
    *request = name == "cpu"         ? DeviceRequest::kCpu
               : name == "cuda"      ? DeviceRequest::kCuda
               : name == "simulated" ? DeviceRequest::kSimulated
                                     : DeviceRequest::kAuto;
  };
  return command->add_option_function<std::string>("--device", store, help)
      ->check(CLI::IsMember(names))
      ->default_str("auto");
}

}  // namespace

CLI::Option* AddDeviceFlag(CLI::App* command, DeviceRequest* request) {
  return Add(command, request, "Where the model runs; auto takes the GPU if there is a usable one",
             {"auto", "cpu", "cuda"});
}

CLI::Option* AddDeviceFlagWithSimulation(CLI::App* command, DeviceRequest* request) {
  return Add(
      command, request,
      "Where the model runs; auto takes the GPU if there is a usable one; simulated: nowhere "
      "(--simulate)",
      {"auto", "cpu", "cuda", "simulated"});
}

}  // namespace lapidary
