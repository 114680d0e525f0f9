// What a kernel of the stream family is specialised for: the structural value that instantiates it, printable as it stands in a unit.
#pragma once

#include "kvloom/device/sm80/config.h"

namespace kvloom::stream {

struct AttendConfig {
  int head_dim_qk = 128;  // multiples of 16
  int head_dim_vo = 128;
  DType q_dtype = DType::bf16;   // f16 or bf16
  DType kv_dtype = DType::bf16;  // that of Q, or fp8
  DType o_dtype = DType::bf16;   // f16, bf16 or f32
  int heads = 1;                 // neighbouring KV heads that are read together, an equal share of the warps each
  int pieces = 16;               // in shared memory; a piece is kPieceKeys keys of K and V of `heads` heads
  bool paged = true;
  bool gathers = false;  // has the code for pages that boxes can't fetch, too
  bool q_in_registers = true;
  bool fixed_split = false;  // the plan has split_tokens: chunks are folded one by one, and a key is always the same warp's
  bool many = false;         // fixed_split: has the code for items of class 1, which have many rows, too (many.cuh)
  int merge_partials = 16, merge_rows = 1;  // block::MergeShape
  int entries_ahead = 32;    // partials of a merge unit that are known before the item's end
  bool two_boxes = false;    // of the pieces that a pass begins with, two are asked for at a time (load.cuh)
  bool beside = false;       // device/mixed: the same warps have items of another kernel in between, and arrivals wait where levels meet
  int apart = 0;             // beside: bytes of shared memory between what the items at hand have and what lasts as long as the CTA

  static constexpr int kRows = 16, kPieceKeys = 16, kWarps = 8, kLoaderWarps = 4;
  static constexpr int kManyRows = 64, kManyWarps = kManyRows / 16;  // of an item with many rows; warps along them
  KVLOOM_HD constexpr int pass_rows() const { return many ? kManyRows : kRows; }
  KVLOOM_HD constexpr int piece_users() const { return many ? kWarps : heads; }  // arrivals that leave a piece
  KVLOOM_HD constexpr int head_warps() const { return kWarps / heads; }  // warps of a head: they take its pieces in turn
  KVLOOM_HD constexpr int threads() const { return 32 * (kLoaderWarps + kWarps); }
  // Registers a thread: what the kernel is launched with, handed out anew between the warps that load and those that compute.
  KVLOOM_HD constexpr int launch_registers() const { return 168; }
  KVLOOM_HD constexpr int loader_registers() const { return gathers ? 88 : 56; }
  KVLOOM_HD constexpr int compute_registers() const { return gathers ? 208 : 224; }
  KVLOOM_HD constexpr bool fp8() const { return is_fp8(kv_dtype); }
  /// Neighbouring pieces that a warp works on together: of 8 bits, what a step costs beside its keys is much of it.
  KVLOOM_HD constexpr int step_pieces() const { return fp8() ? 2 : 1; }
  KVLOOM_HD constexpr int step_keys() const { return step_pieces() * kPieceKeys; }
  /// Places of pieces come in so many: a place is always the same warp's.
  KVLOOM_HD constexpr int turn_pieces() const { return head_warps() * step_pieces(); }
  KVLOOM_HD constexpr int turn_keys() const { return turn_pieces() * kPieceKeys; }

  /// What a warp does with its pieces is a tile of the sm80 family.
  KVLOOM_HD constexpr sm80::AttendConfig step() const {
    sm80::AttendConfig s;
    s.head_dim_qk = head_dim_qk, s.head_dim_vo = head_dim_vo;
    s.q_dtype = q_dtype, s.kv_dtype = kv_dtype, s.o_dtype = o_dtype;
    s.tile_rows = kRows, s.tile_kv = step_keys(), s.warps_rows = s.warps_kv = 1;
    s.paged = paged, s.boxed = true, s.q_in_registers = q_in_registers;
    s.loads_ahead = 2;
    s.convert_fp8 = fp8();
    s.k_gap = (heads - 1) * kPieceKeys * head_dim_qk * size_of(kv_dtype);
    s.v_gap = (heads - 1) * kPieceKeys * head_dim_vo * size_of(kv_dtype);
    return s;
  }
};

}  // namespace kvloom::stream
