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
  int shared_per_sm = 233472;  // bytes; sm_80: 167936, sm_86, sm_89, sm_120: 102400
};

/// Bytes of shared memory of a CTA, a little rounded up.
KVLOOM_HD constexpr int shared_estimate(const AttendConfig& c, const UnitSpec& s) {
  const int q_row = round_up(c.head_dim_qk * 2, 128), k_row = round_up(c.head_dim_qk * size_of(c.kv_dtype), 128),
            v_row = round_up(c.head_dim_vo * size_of(c.kv_dtype), 128);
  int bytes = c.tile_rows * q_row + c.stages * c.tile_kv * (k_row + v_row);
  if (c.fp8() && s.rotates_keys) bytes += c.tile_kv * q_row;
  if (c.fixed_split) bytes += c.tile_rows * c.head_dim_vo * 4;
  if (c.wide()) bytes += c.tile_rows * 128 + c.tile_rows * c.warps_kv * 4;
  bytes += c.tile_kv * (8 * 4 + 2 * 16) + 4 * c.tile_rows * c.mask_words() * (c.stages > 2 ? 8 : 4) + c.tile_rows * 48 + (s.rotates_keys ? c.head_dim_qk * 4 : 16);
  return bytes + 1024;
}

/// As many CTAs as fit, at most `most`.
KVLOOM_HD constexpr AttendConfig with_ctas(AttendConfig c, const UnitSpec& s, int most) {
  const int fit = s.shared_per_sm / (shared_estimate(c, s) + 1024);
  c.ctas_per_sm = clamp_to(fit, 1, most);
  return c;
}

KVLOOM_HD constexpr AttendConfig common_config(const UnitSpec& s) {
  AttendConfig c;
  c.head_dim_qk = s.head_dim_qk, c.head_dim_vo = s.head_dim_vo;
  c.q_dtype = s.q_dtype, c.kv_dtype = s.kv_dtype, c.o_dtype = s.o_dtype;
  c.paged = s.paged, c.fixed_split = s.fixed_split;
  return c;
}

/// Few rows against many keys.
KVLOOM_HD constexpr AttendConfig memory_config(const UnitSpec& s) {
  AttendConfig c = common_config(s);
  c.tile_rows = 16, c.tile_kv = 64, c.warps_rows = 1, c.warps_kv = 4;
  if (c.wide()) {
    c.tile_kv = 32;
    return with_ctas(c, s, 1);
  }
  c.q_in_registers = s.head_dim_qk <= 128;
  return with_ctas(c, s, s.head_dim_qk <= 128 && s.head_dim_vo <= 128 ? 3 : 2);
}

/// Many rows.
KVLOOM_HD constexpr AttendConfig compute_config(const UnitSpec& s) {
  AttendConfig c = common_config(s);
  if (c.wide()) return memory_config(s);
  const bool large = s.head_dim_qk > 128 || s.head_dim_vo > 128;
  c.tile_rows = large ? 64 : 128, c.tile_kv = 64, c.warps_rows = 4, c.warps_kv = 1;
  c.slice_keys = 32;
  if (s.shared_per_sm < shared_estimate(c, s) + 1024) c.tile_kv = 32, c.slice_keys = 0;
  return with_ctas(c, s, 2);
}

}  // namespace kvloom::sm80
