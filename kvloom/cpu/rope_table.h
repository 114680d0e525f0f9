// Cosines and sines of fused RoPE for one position after the other, cheap enough to make while K is loaded. Angles are formed in double.
// A position is 64 a + b: the turn by 64 a is made when a changes, the turns by 0..63 once, and their product is one complex multiply.
#pragma once

#include "kvloom/contract/variant.h"
#include "kvloom/cpu/arena.h"

namespace kvloom::cpu {

struct RopeTable {
  RopeMode mode = RopeMode::none;
  int32_t pairs = 0;  // rotary_dim / 2
  double* frequency;  // [pairs] radians per position
  double* fine_cos;   // [64][pairs] of positions 0 .. 63
  double* fine_sin;
  double* coarse_cos;  // [pairs] of position 64 * coarse
  double* coarse_sin;
  float* cos;  // [pairs] of the position last asked for
  float* sin;
  int32_t coarse = 0;
};

/// Takes the table's memory; nothing if `spec.mode` is none.
RopeTable take_rope_table(Arena& arena, const RopeSpec& spec, int32_t head_dim);
/// Fills frequencies and fine turns.
void begin_rope(RopeTable& table, const RopeSpec& spec, int32_t head_dim);
/// table.cos, table.sin = of `pos` (any sign).
void set_rope_position(RopeTable& table, int32_t pos);

}  // namespace kvloom::cpu
