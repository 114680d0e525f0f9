// One spelling for "compiles for host and device", and fixed-width integers that NVRTC (which has no <cstdint>) also knows.
#pragma once

#if defined(__CUDACC_RTC__)
#define KVLOOM_HD __host__ __device__ __forceinline__
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
#else
#include <cstddef>
#include <cstdint>
#if defined(__CUDACC__)
#define KVLOOM_HD __host__ __device__ __forceinline__
#else
// Inlined everywhere: the CPU backend compiles the same headers with other instruction sets, and an out-of-line copy of one of those
// must never be the one that the linker keeps for everybody.
#define KVLOOM_HD inline __attribute__((always_inline))
#endif
#endif
