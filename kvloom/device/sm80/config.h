// What a kernel of the sm80 family is specialised for: the structural value that instantiates it, printable as it stands in a unit.
#pragma once

#include "kvloom/base/dtype.h"

namespace kvloom::sm80 {

struct AttendConfig {
  int head_dim_qk = 128;
  int head_dim_vo = 128;
  DType q_dtype = DType::bf16;  // of Q, K and V; f16 or bf16
  DType o_dtype = DType::bf16;
  int tile_rows = 128;  // packed rows
  int tile_kv = 64;     // keys
  int warps_rows = 4;   // warps along the rows, each with tile_rows / warps_rows of them
  int warps_kv = 1;     // warps along the keys of a tile; their states are merged at the end of an item
  int ctas_per_sm = 2;  // aimed at: registers are bounded for it
  bool paged = true;
  bool listed_positions = false;  // positions of keys are looked up, not counted (KvPosition other than linear)

  KVLOOM_HD constexpr int threads() const { return 32 * warps_rows * warps_kv; }
  KVLOOM_HD constexpr int row_tiles() const { return tile_rows / (16 * warps_rows); }  // m16 tiles of a warp
  KVLOOM_HD constexpr int key_tiles() const { return tile_kv / (8 * warps_kv); }       // n8 tiles of a warp's scores
};

}  // namespace kvloom::sm80
