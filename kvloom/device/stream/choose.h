// Which configuration a spec gets: as many pieces on their way as shared memory holds beside what else is there. Measured reasons:
// docs/lab-notes.md.
#pragma once

#include "kvloom/device/stream/config.h"

namespace kvloom::stream {

/// What a unit is made for.
struct UnitSpec {
  int head_dim_qk = 128;
  int head_dim_vo = 128;
  DType q_dtype = DType::bf16;
  DType kv_dtype = DType::bf16;
  DType o_dtype = DType::bf16;
  bool paged = true;
  bool fixed_split = false;
};

// Of pieces, at most: 96 KB on their way beside those that are worked on, which of 8 bits are twice as many.
inline constexpr int kRingBytes = 160 * 1024, kFp8RingBytes = 192 * 1024;

KVLOOM_HD constexpr AttendConfig config_of(const UnitSpec& s) {
  AttendConfig c;
  c.head_dim_qk = s.head_dim_qk, c.head_dim_vo = s.head_dim_vo;
  c.q_dtype = s.q_dtype, c.kv_dtype = s.kv_dtype, c.o_dtype = s.o_dtype;
  c.paged = c.gathers = s.paged;
  c.q_in_registers = s.head_dim_qk <= 128;
  c.fixed_split = s.fixed_split;
  c.heads = size_of(s.kv_dtype) == 1 ? 2 : 1;  // boxes of 2 KB come no faster than those of 4
  const int piece = c.kPieceKeys * (s.head_dim_qk + s.head_dim_vo) * size_of(s.kv_dtype) * c.heads;
  const int ring = c.fp8() && !c.fixed_split && s.head_dim_qk <= 128 && s.head_dim_vo <= 128 ? kFp8RingBytes : kRingBytes;
  c.pieces = ring / piece / c.turn_pieces() * c.turn_pieces();
  return c;
}

/// True if items with many rows have code of their own under fixed_split: three states of half of a row's dims fit a warp's registers.
KVLOOM_HD constexpr bool has_many(const UnitSpec& s) {
  return size_of(s.kv_dtype) == 2 && s.head_dim_qk <= 128 && (s.head_dim_vo == 64 || s.head_dim_vo == 128);
}
KVLOOM_HD constexpr AttendConfig many_config_of(const UnitSpec& s) {
  AttendConfig c = config_of(s);
  c.many = true;
  return c;
}

}  // namespace kvloom::stream
