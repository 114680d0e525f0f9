// What a kernel of the sm80 family is specialised for: the structural value that instantiates it, printable as it stands in a unit.
#pragma once

#include "kvloom/base/dtype.h"
#include "kvloom/base/math.h"

namespace kvloom::sm80 {

struct AttendConfig {
  int head_dim_qk = 128;  // multiples of 16
  int head_dim_vo = 128;
  DType q_dtype = DType::bf16;   // f16 or bf16
  DType kv_dtype = DType::bf16;  // that of Q, or fp8
  DType o_dtype = DType::bf16;   // f16, bf16 or f32
  int tile_rows = 128;  // packed rows
  int tile_kv = 64;     // keys, a multiple of 32
  int warps_rows = 4;   // warps along the rows, each with tile_rows / warps_rows of them
  int warps_kv = 1;     // warps along the keys of a tile; their states are merged at the end of an item
  int stages = 2;       // tiles of K and V in shared memory
  int ahead = 0;        // tiles on their way while one is worked on, at most stages - 1; 0: all others. What is left over lets warps drift apart
  int ctas_per_sm = 2;  // aimed at: registers are bounded for it
  bool paged = true;
  bool fixed_split = false;   // the plan may have split_tokens: items fold their chunks one by one
  bool q_in_registers = false;
  bool boxed = false;         // K and V lie as boxes do (tile/swizzle.cuh)
  bool place_fp8_values = true;  // V's bits put in place (tile/fp8_bits.cuh); false: converted
  bool convert_fp8 = false;      // fp8 K and V become f16 by conversion instructions, and Q comes as f16 in the order that asks for (mainloop.cuh)
  int k_gap = 0, v_gap = 0;      // boxed: bytes between 16 keys of a tile and the next 16, where these are pieces of their own
  int loads_ahead = 1;        // ldmatrix instructions between the one that is asked for and the products that go on meanwhile

  KVLOOM_HD constexpr int warps() const { return warps_rows * warps_kv; }
  KVLOOM_HD constexpr int threads() const { return 32 * warps(); }
  KVLOOM_HD constexpr int row_tiles() const { return tile_rows / (16 * warps_rows); }  // m16 tiles of a warp
  KVLOOM_HD constexpr int warp_keys() const { return tile_kv / warps_kv; }
  KVLOOM_HD constexpr int key_tiles() const { return warp_keys() / 8; }  // n8 tiles of a warp's scores
  KVLOOM_HD constexpr int tiles_ahead() const { return ahead ? ahead : stages - 1; }
  /// A warp copies exactly the keys that it works on; else whole tiles in turn (ring.cuh).
  KVLOOM_HD constexpr bool own_keys() const { return warps_rows == 1 && !wide(); }
  KVLOOM_HD constexpr int copy_rows() const { return own_keys() ? warp_keys() : tile_kv; }  // of a tile, by one warp
  KVLOOM_HD constexpr int parts() const { return tile_kv / copy_rows(); }                    // of a tile, each copied by a warp
  KVLOOM_HD constexpr int part_words() const { return (copy_rows() + 31) / 32; }             // of masks
  /// Floats of what one of the warps that share rows leaves for their merge: O fragments, then maxima and sums of the rows.
  KVLOOM_HD constexpr int merge_floats() const { return tile_rows * (head_dim_vo + 2); }
  /// Bytes of all of them, which lie where Q, K and V were (store.cuh).
  KVLOOM_HD constexpr int merge_bytes() const { return warps_kv > 1 && !wide() ? 4 * warps_kv * merge_floats() : 0; }
  KVLOOM_HD constexpr bool fp8() const { return is_fp8(kv_dtype); }
  KVLOOM_HD constexpr DType qk_dtype() const { return fp8() && convert_fp8 ? DType::f16 : q_dtype; }
  /// Weights and values are multiplied in f16 where V is fp8: both fit it exactly.
  KVLOOM_HD constexpr DType pv_dtype() const { return fp8() ? DType::f16 : kv_dtype; }
  /// O of a row is too long for one warp: every warp does all rows and keys of the tile for a part of the dims.
  KVLOOM_HD constexpr bool wide() const { return head_dim_vo > 256; }
};

}  // namespace kvloom::sm80
