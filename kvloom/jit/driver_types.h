// The types and numbers of the CUDA driver API that we use, as the API publishes them: the library builds without a CUDA toolkit. A test
// compares every one of them with cuda.h where that is there.
#pragma once

#include <cstdint>

namespace kvloom::jit {

using CuResult = int;
using CuDevice = int;
using CuContext = struct CuContextTag*;
using CuModule = struct CuModuleTag*;
using CuFunction = struct CuFunctionTag*;
using CuStream = struct CuStreamTag*;
using CuEvent = struct CuEventTag*;
using CuGraph = struct CuGraphTag*;
using CuGraphExec = struct CuGraphExecTag*;
using CuAddress = unsigned long long;  // of device memory

inline constexpr CuResult kCuSuccess = 0;
inline constexpr CuResult kCuOutOfMemory = 2;
inline constexpr CuResult kCuCaptureUnsupported = 900;
inline constexpr CuResult kCuNotReady = 600;

enum CuDeviceAttribute : int {
  kCuComputeCapabilityMajor = 75,
  kCuComputeCapabilityMinor = 76,
  kCuMultiprocessorCount = 16,
  kCuClockRateKhz = 13,
  kCuMemoryClockRateKhz = 36,
  kCuMemoryBusBits = 37,
  kCuL2Bytes = 38,
  kCuMaxSharedBytesPerBlockOptin = 97,
  kCuMaxSharedBytesPerMultiprocessor = 81,
};
enum CuFunctionAttribute : int {
  kCuFunctionLocalBytes = 3,
  kCuFunctionRegisters = 4,
  kCuFunctionMaxDynamicSharedBytes = 8,
};
enum CuPointerAttribute : int { kCuPointerMemoryType = 2, kCuPointerIsManaged = 8, kCuPointerDeviceOrdinal = 9 };
enum CuTensorMapType : int { kCuTensorMapU8 = 0, kCuTensorMapF16 = 6, kCuTensorMapBf16 = 9 };
enum CuTensorMapSwizzle : int { kCuTensorMapSwizzleNone = 0, kCuTensorMapSwizzle32 = 1, kCuTensorMapSwizzle64 = 2, kCuTensorMapSwizzle128 = 3 };
inline constexpr int kCuTensorMapInterleaveNone = 0;
inline constexpr int kCuTensorMapPromotion128 = 2;     // what a read that misses L2 fetches, bytes
inline constexpr int kCuTensorMapPromotion256 = 3;
inline constexpr int kCuTensorMapFillZeros = 0;     // elements outside the tensor
enum CuMemoryType : unsigned { kCuMemoryHost = 1, kCuMemoryDevice = 2, kCuMemoryArray = 3, kCuMemoryUnified = 4 };
enum CuCaptureStatus : int { kCuCaptureNone = 0, kCuCaptureActive = 1, kCuCaptureInvalidated = 2 };
enum CuCaptureMode : int { kCuCaptureModeGlobal = 0, kCuCaptureModeThreadLocal = 1, kCuCaptureModeRelaxed = 2 };
inline constexpr unsigned kCuStreamNonBlocking = 1;
inline constexpr unsigned kCuEventDefault = 0;
inline constexpr unsigned kCuEventDisableTiming = 2;
inline constexpr int kCuLaunchClusterDimension = 4;
inline constexpr int kCuLaunchProgrammaticStreamSerialization = 6;

struct CuLaunchAttribute {
  int id;
  char pad[8 - sizeof(int)];
  union {
    char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int programmatic_stream_serialization_allowed;
  } value;
};
struct CuLaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  CuStream stream;
  CuLaunchAttribute* attributes;
  unsigned num_attributes;
};

}  // namespace kvloom::jit
