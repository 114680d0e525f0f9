// Our declarations of the driver API against the toolkit's own, where there is one. Without it there is nothing to compare with: the
// values stand as the API publishes them.
#include "kvloom/jit/driver.h"
#include "kvloom/support/error.h"

#include <gtest/gtest.h>

#if __has_include(<cuda.h>)
#include <cuda.h>

#include <cstddef>

namespace kvloom::jit {
namespace {

static_assert(kCuSuccess == CUDA_SUCCESS && kCuOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY && kCuNotReady == CUDA_ERROR_NOT_READY &&
              kCuCaptureUnsupported == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(int(kCuComputeCapabilityMajor) == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR &&
              int(kCuComputeCapabilityMinor) == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR &&
              int(kCuMultiprocessorCount) == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT &&
              int(kCuClockRateKhz) == CU_DEVICE_ATTRIBUTE_CLOCK_RATE &&
              int(kCuMemoryClockRateKhz) == CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE &&
              int(kCuMemoryBusBits) == CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH &&
              int(kCuL2Bytes) == CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE &&
              int(kCuMaxSharedBytesPerBlockOptin) == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN &&
              int(kCuMaxSharedBytesPerMultiprocessor) == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
static_assert(int(kCuFunctionLocalBytes) == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES && int(kCuFunctionRegisters) == CU_FUNC_ATTRIBUTE_NUM_REGS &&
              int(kCuFunctionMaxDynamicSharedBytes) == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(int(kCuPointerMemoryType) == CU_POINTER_ATTRIBUTE_MEMORY_TYPE && int(kCuPointerIsManaged) == CU_POINTER_ATTRIBUTE_IS_MANAGED &&
              int(kCuPointerDeviceOrdinal) == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL && int(kCuMemoryHost) == CU_MEMORYTYPE_HOST &&
              int(kCuMemoryDevice) == CU_MEMORYTYPE_DEVICE && int(kCuMemoryUnified) == CU_MEMORYTYPE_UNIFIED);
static_assert(int(kCuCaptureNone) == CU_STREAM_CAPTURE_STATUS_NONE && int(kCuCaptureActive) == CU_STREAM_CAPTURE_STATUS_ACTIVE &&
              int(kCuCaptureModeThreadLocal) == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
              int(kCuCaptureModeRelaxed) == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(kCuStreamNonBlocking == CU_STREAM_NON_BLOCKING && kCuEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kCuLaunchProgrammaticStreamSerialization == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
static_assert(sizeof(CuLaunchAttribute) == sizeof(CUlaunchAttribute) &&
              offsetof(CuLaunchAttribute, value) == offsetof(CUlaunchAttribute, value));
static_assert(sizeof(CuLaunchConfig) == sizeof(CUlaunchConfig) && offsetof(CuLaunchConfig, stream) == offsetof(CUlaunchConfig, hStream) &&
              offsetof(CuLaunchConfig, attributes) == offsetof(CUlaunchConfig, attrs) &&
              offsetof(CuLaunchConfig, num_attributes) == offsetof(CUlaunchConfig, numAttrs));
static_assert(sizeof(CuAddress) == sizeof(CUdeviceptr) && sizeof(CuDevice) == sizeof(CUdevice) && sizeof(CuResult) == sizeof(CUresult));

}  // namespace
}  // namespace kvloom::jit
#endif

namespace kvloom::jit {
namespace {

// One of the two always holds, and never silently.
TEST(Driver, IsThereOrSaysWhyNot) {
  std::string why;
  const Driver* d = find_driver(why);
  if (d != nullptr) {
    EXPECT_TRUE(why.empty());
    EXPECT_GE(d->version, 11080);
  } else {
    EXPECT_NE(why.find("driver"), std::string::npos) << why;
    EXPECT_NE(why.find(";"), std::string::npos) << "no remedy: " << why;
    EXPECT_THROW(driver(), Error);
  }
}

TEST(Driver, ErrorsNameTheCall) {
  try {
    check_driver(2, "cuMemAlloc", "1 GiB for the plan");
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::out_of_memory);
    EXPECT_NE(std::string(e.what()).find("cuMemAlloc"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("1 GiB"), std::string::npos);
  }
}

}  // namespace
}  // namespace kvloom::jit
