#include "kvloom/device/sm80/unit.cuh"
#include "kvloom/variants/plain.h"

namespace {
constexpr kvloom::sm80::AttendConfig kMemory{.tile_rows = 16, .tile_kv = 64, .warps_rows = 1, .warps_kv = 4, .stages = 2, .ctas_per_sm = 3, .q_in_registers = true};
constexpr kvloom::sm80::AttendConfig kCompute{.tile_rows = 128, .tile_kv = 64, .warps_rows = 4, .warps_kv = 1, .ctas_per_sm = 2};
}  // namespace

extern "C" __device__ int32_t lab_tiles[4] = {kMemory.tile_rows, kMemory.tile_kv, kCompute.tile_rows, kCompute.tile_kv};
KVLOOM_SM80_ATTEND(attend_memory, kMemory, kvloom::variants::Plain)
KVLOOM_SM80_ATTEND(attend_compute, kCompute, kvloom::variants::Plain)
KVLOOM_SM80_ATTEND_MIXED(attend_mixed, kMemory, kCompute, kvloom::variants::Plain)
