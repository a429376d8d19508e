#include "apps/device_flag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lapidary {
namespace {

DeviceRequest Parse(const std::string& arguments) {
  CLI::App app;
  DeviceRequest request = DeviceRequest::kAuto;
  AddDeviceFlag(&app, &request);
  app.parse(arguments);
  return request;
}

TEST(DeviceFlagTest, NamesMapToRequests) {
  EXPECT_EQ(Parse("--device auto"), DeviceRequest::kAuto);
  EXPECT_EQ(Parse("--device cpu"), DeviceRequest::kCpu);
  EXPECT_EQ(Parse("--device=cuda"), DeviceRequest::kCuda);
}

TEST(DeviceFlagTest, AbsentFlagMeansAuto) { EXPECT_EQ(Parse(""), DeviceRequest::kAuto); }

TEST(DeviceFlagTest, OtherNamesAreRefused) {
  EXPECT_THROW(Parse("--device gpu"), CLI::ValidationError);
  EXPECT_THROW(Parse("--device"), CLI::ArgumentMismatch);
}

TEST(DeviceFlagTest, OnlySomeCommandsTakeASimulatedDevice) {
  EXPECT_THROW(Parse("--device simulated"), CLI::ValidationError);
  CLI::App app;
  DeviceRequest request = DeviceRequest::kAuto;
  AddDeviceFlagWithSimulation(&app, &request);
  app.parse("--device simulated");
  EXPECT_EQ(request, DeviceRequest::kSimulated);
}

TEST(DeviceFlagTest, HelpListsTheChoices) {
  CLI::App app;
  DeviceRequest request = DeviceRequest::kAuto;
  AddDeviceFlag(&app, &request);
  EXPECT_THAT(app.help(), testing::HasSubstr("{auto,cpu,cuda}"));
}

}  // namespace
}  // namespace lapidary
