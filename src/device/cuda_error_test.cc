#include "device/cuda_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lapidary {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CudaErrorTest, SuccessDoesNotThrow) { EXPECT_NO_THROW(LAPIDARY_CUDA_CHECK(cudaSuccess)); }

TEST(CudaErrorTest, MessageNamesPlaceCallAndCause) {
  try {
    LAPIDARY_CUDA_CHECK(static_cast<cudaError_t>(cudaErrorInvalidValue));
    FAIL() << "did not throw";
  } catch (const CudaError& error) {
    EXPECT_EQ(error.code(), cudaErrorInvalidValue);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("cuda_error_test.cc:"),
                                    HasSubstr("static_cast<cudaError_t>(cudaErrorInvalidValue)"),
                                    HasSubstr("(cudaErrorInvalidValue)")));
  }
}

TEST(CudaErrorTest, OutOfMemoryIsItsOwnType) {
  EXPECT_THROW(LAPIDARY_CUDA_CHECK(cudaErrorMemoryAllocation), CudaOutOfMemory);
  try {
    LAPIDARY_CUDA_CHECK(cudaErrorLaunchFailure);
    FAIL() << "did not throw";
  } catch (const CudaOutOfMemory&) {
    FAIL() << "a launch failure is not out of memory";
  } catch (const CudaError&) {
  }
}

TEST(CudaErrorTest, PendingErrorIsCleared) {
  int num_gpus = 0;
  if (cudaGetDeviceCount(&num_gpus) != cudaSuccess) GTEST_SKIP() << "every call fails: no driver";
  EXPECT_THROW(LAPIDARY_CUDA_CHECK(cudaSetDevice(num_gpus)), CudaError);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

}  // namespace
}  // namespace lapidary
