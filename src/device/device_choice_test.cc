#include "device/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lapidary {
namespace {

using ::testing::HasSubstr;

GpuInfo Hopper(int ordinal) {
  return {.ordinal = ordinal,
          .name = "NVIDIA H200",
          .memory_bytes = int64_t{141} << 30,
          .compute_major = 9,
          .compute_minor = 0};
}

GpuInfo Ampere(int ordinal) {
  return {.ordinal = ordinal,
          .name = "NVIDIA A100",
          .memory_bytes = int64_t{80} << 30,
          .compute_major = 8,
          .compute_minor = 0};
}

GpuInfo Blackwell(int ordinal) {
  return {.ordinal = ordinal,
          .name = "NVIDIA B200",
          .memory_bytes = int64_t{180} << 30,
          .compute_major = 10,
          .compute_minor = 0};
}

DeviceFacts FactsWith(std::vector<GpuInfo> gpus) {
  return {.built_with_cuda = true, .gpu_list = {.gpus = std::move(gpus), .problem = ""}};
}

// What stands in the way of CUDA: auto must fall back to the CPU and say it, cuda must fail with
// it.
void ExpectObstacle(const DeviceFacts& facts, const std::string& obstacle) {
  const Result<DeviceChoice> chosen = ChooseDevice(DeviceRequest::kAuto, facts);
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->kind, DeviceKind::kCpu);
  EXPECT_EQ(chosen->gpu_ordinal, -1);
  EXPECT_THAT(chosen->reason, HasSubstr(obstacle));

  const Result<DeviceChoice> demanded = ChooseDevice(DeviceRequest::kCuda, facts);
  ASSERT_FALSE(demanded.ok());
  EXPECT_THAT(demanded.error().message, HasSubstr("--device cuda: "));
  EXPECT_THAT(demanded.error().message, HasSubstr(obstacle));
}

TEST(DeviceChoiceTest, CpuIsTakenEvenBesideAGoodGpu) {
  const Result<DeviceChoice> choice = ChooseDevice(DeviceRequest::kCpu, FactsWith({Hopper(0)}));
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->kind, DeviceKind::kCpu);
}

TEST(DeviceChoiceTest, ASimulatedDeviceNeedsNone) {
  const Result<DeviceChoice> choice = ChooseDevice(DeviceRequest::kSimulated, DeviceFacts());
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->kind, DeviceKind::kSimulated);
  EXPECT_EQ(choice->gpu_ordinal, -1);
}

TEST(DeviceChoiceTest, AutoAndCudaTakeTheFirstGpuThatRunsOurKernels) {
  for (const DeviceRequest request : {DeviceRequest::kAuto, DeviceRequest::kCuda}) {
    const Result<DeviceChoice> choice =
        ChooseDevice(request, FactsWith({Ampere(0), Hopper(1), Hopper(2)}));
    ASSERT_TRUE(choice.ok()) << choice.error().message;
    EXPECT_EQ(choice->kind, DeviceKind::kCuda);
    EXPECT_EQ(choice->gpu_ordinal, 1);
    EXPECT_EQ(choice->reason, "GPU 1 (NVIDIA H200, 141 GiB, compute capability 9.0)");
  }
}

TEST(DeviceChoiceTest, BuildWithoutCudaSaysHowToBuildIt) {
  ExpectObstacle({}, "build with LAPIDARY_CUDA=1");
}

TEST(DeviceChoiceTest, NoGpuPassesOnTheDriversWords) {
  DeviceFacts facts = FactsWith({});
  facts.gpu_list.problem = "CUDA driver version is insufficient for CUDA runtime version";
  ExpectObstacle(facts, "driver version is insufficient");
}

TEST(DeviceChoiceTest, OlderGpuIsRefused) {
  ExpectObstacle(FactsWith({Ampere(0)}), "compute capability 8.0) cannot run kernels built for");
}

TEST(DeviceChoiceTest, NewerGpuIsRefusedForWantOfCode) {
  ExpectObstacle(FactsWith({Blackwell(0)}),
                 "compute capability 10.0) cannot run kernels built for");
}

TEST(DeviceProbeTest, ListIsFilledOrExplained) {
  const GpuList list = ListGpus();
  EXPECT_EQ(list.gpus.empty(), !list.problem.empty());
  for (const GpuInfo& gpu : list.gpus) {
    EXPECT_FALSE(gpu.name.empty());
    EXPECT_GT(gpu.memory_bytes, 0);
    EXPECT_GT(gpu.compute_major, 0);
  }
}

TEST(DeviceProbeTest, AutoWorksOnThisMachine) {
  EXPECT_TRUE(ChooseDevice(DeviceRequest::kAuto).ok());
}

}  // namespace
}  // namespace lapidary
