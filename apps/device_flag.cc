#include "apps/device_flag.h"

#include <string>

namespace lapidary {

CLI::Option* AddDeviceFlag(CLI::App* command, DeviceRequest* request) {
  const auto store = [request](const std::string& name) {
    *request = name == "cpu"    ? DeviceRequest::kCpu
               : name == "cuda" ? DeviceRequest::kCuda
                                : DeviceRequest::kAuto;
  };
  return command
      ->add_option_function<std::string>(
          "--device", store, "Where the model runs; auto takes the GPU if there is a usable one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->default_str("auto");
}

}  // namespace lapidary
