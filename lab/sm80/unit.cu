#include "kvloom/device/sm80/attend.cuh"
#include "kvloom/variants/plain.h"
using namespace kvloom;
using namespace kvloom::sm80;
#define UNIT(NAME, ...) \
extern "C" __global__ void __launch_bounds__((AttendConfig{__VA_ARGS__}).threads()) NAME(const __grid_constant__ AttendArgs args) { \
  extern __shared__ __align__(128) char memory[]; block_run<AttendConfig{__VA_ARGS__}, variants::Plain>(args, *reinterpret_cast<SharedMemory<AttendConfig{__VA_ARGS__}>*>(memory)); }
UNIT(p128, .tile_rows=128, .tile_kv=64, .warps_rows=4, .warps_kv=1, .paged=true)
UNIT(r128, .tile_rows=128, .tile_kv=64, .warps_rows=4, .warps_kv=1, .paged=false)
UNIT(p64, .tile_rows=64, .tile_kv=64, .warps_rows=4, .warps_kv=1, .paged=true)
UNIT(p16, .tile_rows=16, .tile_kv=64, .warps_rows=1, .warps_kv=4, .paged=true)
