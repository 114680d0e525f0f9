// Which tiles a spec gets, by head dims. Measured reasons: docs/lab-notes.md.
#pragma once

#include "kvloom/device/sm90/config.h"

namespace kvloom::sm90 {

/// What a unit is made for.
struct UnitSpec {
  int head_dim_qk = 128;
  int head_dim_vo = 128;
  DType dtype = DType::bf16;
  DType o_dtype = DType::bf16;
  bool paged = true;
  bool hooked = false;  // a hook sees every score: it needs the registers that Q would have
};

/// The pairs of head dims that have a kernel.
KVLOOM_HD constexpr bool has_dims(int qk, int vo) {
  if (qk == 192 && vo == 128) return true;
  return qk == vo && (qk == 64 || qk == 96 || qk == 128 || qk == 192 || qk == 256);
}

/// Of CTAs by themselves, that have the code for pages without boxes.
KVLOOM_HD constexpr AttendConfig config_of(const UnitSpec& s, bool may_be_192_rows) {
  AttendConfig c;
  c.head_dim_qk = s.head_dim_qk, c.head_dim_vo = s.head_dim_vo;
  c.dtype = s.dtype, c.o_dtype = s.o_dtype;
  c.paged = c.gathers = s.paged;
  const bool wide = s.head_dim_qk > 128;
  c.tile_kv = wide ? 64 : 128;
  c.q_in_registers = !wide && !s.hooked;
  c.stages_o = !wide;
  c.merge_apart = true;
  if (may_be_192_rows && s.head_dim_qk == 64 && s.head_dim_vo == 64) c.tile_rows = 192, c.q_in_registers = false;
  // Rows that come one by one take longer than boxes, and V's place is free late in a step: a third one instead of memory for O.
  if (c.gathers && c.q_in_registers) c.value_stages = 3, c.stages_o = false;
  return c;
}

/// Of items beside some of few rows (device/mixed): as many warps as those take.
KVLOOM_HD constexpr AttendConfig mixed_config(const UnitSpec& s) { return config_of(s, false); }

/// Of steps with nothing but many rows, of pages without boxes: rows land in one CTA.
KVLOOM_HD constexpr AttendConfig rows_config(const UnitSpec& s) { return config_of(s, true); }

/// Of steps with nothing but many rows: two CTAs share what is read, which saves energy, and the clock falls less.
KVLOOM_HD constexpr AttendConfig compute_config(const UnitSpec& s) {
  AttendConfig c = config_of(s, true);
  c.ctas = 2;
  c.gathers = false;
  c.merge_apart = s.hooked || c.tile_rows == 192;  // else the loops have what they need
  if (c.q_in_registers) c.value_stages = 2, c.stages_o = true;
  if (c.tile_rows == 192) c.stages = c.value_stages = 3;  // two CTAs wait for each other's places less
  return c;
}

}  // namespace kvloom::sm90
