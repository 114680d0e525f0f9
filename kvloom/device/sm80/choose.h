// Which tiles a spec gets: the configurations of the two classes, by head dims and shared memory. Measured reasons: docs/lab-notes.md.
#pragma once

#include "kvloom/device/sm80/config.h"

namespace kvloom::sm80 {

/// What a unit is made for.
struct UnitSpec {
  int head_dim_qk = 128;  // multiples of 16; up to 256, or any qk with a vo of 512
  int head_dim_vo = 128;
  DType q_dtype = DType::bf16;
  DType kv_dtype = DType::bf16;
  DType o_dtype = DType::bf16;
  bool paged = true;
  bool fixed_split = false;
  bool rotates_keys = false;  // a key hook: with fp8 keys it needs a tile of its own
  bool makes_masks = false;   // key by key, before a tile is copied
  int shared_per_sm = 233472;  // bytes; sm_80: 167936, sm_86, sm_89, sm_120: 102400
};

/// Bytes of shared memory of a CTA, at most kSharedSlack too many (unit.cuh compares it with the real thing).
inline constexpr int kSharedSlack = 256;
KVLOOM_HD constexpr int shared_estimate(const AttendConfig& c, const UnitSpec& s) {
  const int q_row = round_up(c.head_dim_qk * 2, 128), k_row = round_up(c.head_dim_qk * size_of(c.kv_dtype), 128),
            v_row = round_up(c.head_dim_vo * size_of(c.kv_dtype), 128);
  int bytes = c.tile_rows * q_row + c.stages * c.tile_kv * (k_row + v_row);
  if (c.fp8() && s.rotates_keys) bytes += c.tile_kv * q_row;
  bytes = max_of(bytes, c.merge_bytes());
  bytes += c.warps() * 16 * round_up(c.copy_rows(), 32);  // places
  if (c.fixed_split) bytes += c.tile_rows * c.head_dim_vo * 4 + c.tile_rows * c.warps_kv * 4;
  if (c.wide()) bytes += c.tile_rows * 128 + c.tile_rows * c.warps_kv * 4;
  if (s.rotates_keys) bytes += c.head_dim_qk * 4;
  const int slots = c.own_keys() ? c.tiles_ahead() + 2 : c.stages;
  bytes += slots * c.parts() * 4 * (c.part_words() * (c.tile_rows + 33) + 1);  // masks
  return bytes + c.tile_rows * 48 + c.stages * 16 + 576;
}

/// True if `ctas` CTAs fit an SM.
KVLOOM_HD constexpr bool fits(const AttendConfig& c, const UnitSpec& s, int ctas) {
  constexpr int kReserved = 1024;  // of every CTA, by the system
  return ctas * (shared_estimate(c, s) + kReserved) <= s.shared_per_sm;
}

KVLOOM_HD constexpr AttendConfig common_config(const UnitSpec& s) {
  AttendConfig c;
  c.head_dim_qk = s.head_dim_qk, c.head_dim_vo = s.head_dim_vo;
  c.q_dtype = s.q_dtype, c.kv_dtype = s.kv_dtype, c.o_dtype = s.o_dtype;
  c.paged = s.paged, c.fixed_split = s.fixed_split;
  return c;
}

/// The deepest ring with which `ctas` CTAs fit; two stages at least, whether or not they do.
KVLOOM_HD constexpr AttendConfig with_stages(AttendConfig c, const UnitSpec& s, int ctas, int most) {
  c.ctas_per_sm = ctas;
  for (c.stages = most; c.stages > 2 && !fits(c, s, ctas); --c.stages) {
  }
  return c;
}

KVLOOM_HD constexpr bool is_large(const UnitSpec& s) { return s.head_dim_qk > 128 || s.head_dim_vo > 128; }

/// Few rows against many keys: two CTAs of four warps, each with keys of its own; one keeps reading while the other begins and ends an item.
KVLOOM_HD constexpr AttendConfig memory_of_4_warps(const UnitSpec& s) {
  AttendConfig c = common_config(s);
  const int key_bytes = (s.head_dim_qk + s.head_dim_vo) * size_of(s.kv_dtype);
  c.tile_rows = 16, c.warps_rows = 1, c.warps_kv = 4;
  c.tile_kv = c.wide() ? 32 : key_bytes <= 256 ? 128 : 64;
  c.q_in_registers = !c.wide() && s.head_dim_qk <= 128;
  c = with_stages(c, s, 2, 3);
  return !c.wide() && fits(c, s, 2) ? c : with_stages(c, s, 1, c.wide() ? 2 : 3);
}
/// The same with one CTA of eight warps: fewer pieces, fewer merges. Better where a step is small, and what stands beside compute_of_8_warps.
KVLOOM_HD constexpr AttendConfig memory_of_8_warps(const UnitSpec& s) {
  AttendConfig c = common_config(s);
  c.tile_rows = 16, c.tile_kv = 128, c.warps_rows = 1, c.warps_kv = 8;
  c.q_in_registers = s.head_dim_qk <= 128;
  return with_stages(c, s, 1, 3);
}

/// Twice the rows, which two CTAs of four warps still read at the memory's rate: tokens of speculation, groups of more than 16 heads.
KVLOOM_HD constexpr AttendConfig memory_of_32_rows(const UnitSpec& s) {
  AttendConfig c = common_config(s);
  const int key_bytes = (s.head_dim_qk + s.head_dim_vo) * size_of(s.kv_dtype);
  c.tile_rows = 32, c.tile_kv = key_bytes <= 256 ? 128 : 64, c.warps_rows = 1, c.warps_kv = 4;
  c.q_in_registers = s.head_dim_qk <= 64 && s.head_dim_vo <= 64;
  c = with_stages(c, s, 2, 3);
  return fits(c, s, 2) ? c : with_stages(c, s, 1, 3);
}

/// Many rows: 256 of them make the most of every tile that is read; warps may drift apart by a tile. Masks take a while to make: tiles that wait
/// for one are begun two ahead.
KVLOOM_HD constexpr AttendConfig compute_of_8_warps(const UnitSpec& s) {
  AttendConfig c = common_config(s);
  c.tile_rows = 256, c.tile_kv = 64, c.warps_rows = 8, c.warps_kv = 1;
  c = with_stages(c, s, 1, s.makes_masks ? 4 : 3);
  c.ahead = c.stages - 2;
  return c;
}
KVLOOM_HD constexpr AttendConfig compute_of_4_warps(const UnitSpec& s) {
  AttendConfig c = common_config(s);
  c.tile_rows = is_large(s) ? 64 : 128, c.tile_kv = 64, c.warps_rows = 4, c.warps_kv = 1;
  if (!fits(c, s, 1)) c.tile_kv = 32;
  if (!fits(c, s, 1)) c.tile_rows = 64;  // fixed_split keeps O in fp32 besides: chips with 100 KB
  c.ctas_per_sm = fits(c, s, 2) ? 2 : 1;
  return c;
}

/// Chunks of fixed_split must come out the same in every batch, whatever else is in it: there a class has one kernel, of four warps.
KVLOOM_HD constexpr bool takes_8_warps(const UnitSpec& s) {
  return !s.fixed_split && !is_large(s) && fits(compute_of_8_warps(s), s, 1) && fits(memory_of_8_warps(s), s, 1);
}

/// Steps of up to 32 rows have a kernel of their own where a warp can hold O of so many. Not under fixed_split, as above.
KVLOOM_HD constexpr bool takes_32_rows(const UnitSpec& s) { return !s.fixed_split && s.head_dim_vo <= 128 && fits(memory_of_32_rows(s), s, 1); }

/// Of steps with nothing but few rows, and of the few rows beside compute_config. The same under fixed_split.
KVLOOM_HD constexpr AttendConfig memory_config(const UnitSpec& s) { return memory_of_4_warps(s); }
KVLOOM_HD constexpr AttendConfig mixed_memory_config(const UnitSpec& s) { return takes_8_warps(s) ? memory_of_8_warps(s) : memory_of_4_warps(s); }
KVLOOM_HD constexpr AttendConfig compute_config(const UnitSpec& s) {
  if (common_config(s).wide()) return memory_of_4_warps(s);
  return takes_8_warps(s) ? compute_of_8_warps(s) : compute_of_4_warps(s);
}

}  // namespace kvloom::sm80
