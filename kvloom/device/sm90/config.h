// What a kernel of the sm90 family is specialised for: the structural value that instantiates it, printable as it stands in a unit.
#pragma once

#include "kvloom/base/dtype.h"
#include "kvloom/base/math.h"

namespace kvloom::sm90 {

struct AttendConfig {
  int head_dim_qk = 128;  // multiples of 16
  int head_dim_vo = 128;
  DType dtype = DType::bf16;    // of Q, K and V: f16 or bf16
  DType o_dtype = DType::bf16;  // f16, bf16 or f32
  int tile_rows = 128;  // packed rows of a CTA, 64 for each warpgroup that computes
  int tile_kv = 128;    // keys
  int stages = 2;        // tiles of K in shared memory
  int value_stages = 2;  // ... of V
  int ctas = 1;         // of a cluster: they share every tile of K and V, which each loads a part of for all
  bool paged = true;
  bool gathers = false;  // has the code for pages that boxes can't fetch, too; not in a cluster
  bool q_in_registers = true;
  bool stages_o = true;  // O goes through shared memory of its own; false: through Q's, which is free for the next Q when O has gone
  int merge_partials = 4, merge_rows = 1;  // block::MergeShape
  bool merge_together = false;
  bool merge_apart = false;  // by a function that is not inlined: costs items that are parts a call, and leaves the loops the registers of a merge
  bool own_loops = false;  // of plain tiles: for those that come by boxes, and for those that don't
  int apart = 0;  // bytes of shared memory between what the items at hand have and what lasts as long as the CTA

  KVLOOM_HD constexpr int teams() const { return tile_rows / 64; }  // warpgroups that compute
  KVLOOM_HD constexpr int threads() const { return 128 * (teams() + 1); }
  KVLOOM_HD constexpr int item_rows() const { return tile_rows * ctas; }
  KVLOOM_HD constexpr int key_tiles() const { return tile_kv / 8; }
  KVLOOM_HD constexpr int dim_tiles() const { return head_dim_vo / 8; }
  // Registers a thread: what the kernel is launched with, handed out anew between the warpgroup that loads and those that compute.
  KVLOOM_HD constexpr int launch_registers() const { return 65536 / threads() / 8 * 8; }
  KVLOOM_HD constexpr int loader_registers() const { return teams() == 2 ? (gathers ? 56 : 40) : 32; }
  KVLOOM_HD constexpr int compute_registers() const { return (launch_registers() * (1 + teams()) - loader_registers()) / teams() / 8 * 8; }
};

}  // namespace kvloom::sm90
