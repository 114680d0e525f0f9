// Tiles of the sm80 family: which shapes a unit is compiled for, by head dims and the chip's shared memory.
#pragma once

#include "kvloom/contract/spec.h"
#include "kvloom/runtime/gpu_target.h"

namespace kvloom::runtime {

/// What one CTA works on, and how many of them are to share an SM. Fields are those of the family's AttendConfig.
struct Sm80Tile {
  int32_t rows = 0, keys = 0;
  int32_t warps_rows = 0, warps_kv = 0;
  int32_t ctas = 0;  // an SM, as registers and shared memory allow
  bool q_in_registers = false;
  int32_t slice_keys = 0;
};

/// Memory and compute tiles of a unit: CTAs of as many threads, so that one launch can mix them. memory.rows 0: none fits the chip.
struct Sm80Tiles {
  Sm80Tile memory, compute;
};

Sm80Tiles sm80_tiles(const AttentionSpec& spec, const GpuTarget& target, bool fixed_split);

/// Bytes of shared memory of a CTA; not below what the kernel asks for.
int64_t sm80_shared_bytes(const AttentionSpec& spec, const Sm80Tile& tile, bool fixed_split);

}  // namespace kvloom::runtime
