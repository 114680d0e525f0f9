#include "kvloom/cpu/rope_table.h"

#include "kvloom/attn/rope.h"

namespace kvloom::cpu {
namespace {

constexpr int32_t kFine = 64;
constexpr int32_t kFineBits = 6;

void set_coarse(RopeTable& table, int32_t coarse) {
  table.coarse = coarse;
  for (int32_t i = 0; i < table.pairs; ++i) {
    const double angle = table.frequency[i] * (double(coarse) * kFine);
    table.coarse_cos[i] = std::cos(angle);
    table.coarse_sin[i] = std::sin(angle);
  }
}

}  // namespace

RopeTable take_rope_table(Arena& arena, const RopeSpec& spec, int32_t head_dim) {
  RopeTable t;
  if (spec.mode == RopeMode::none) return t;
  t.mode = spec.mode;
  t.pairs = rotary_dim(spec, head_dim) / 2;
  t.frequency = arena.take<double>(t.pairs);
  t.fine_cos = arena.take<double>(int64_t(kFine) * t.pairs);
  t.fine_sin = arena.take<double>(int64_t(kFine) * t.pairs);
  t.coarse_cos = arena.take<double>(t.pairs);
  t.coarse_sin = arena.take<double>(t.pairs);
  t.cos = arena.take<float>(t.pairs);
  t.sin = arena.take<float>(t.pairs);
  return t;
}

void begin_rope(RopeTable& table, const RopeSpec& spec, int32_t head_dim) {
  const int32_t n = table.pairs;
  for (int32_t i = 0; i < n; ++i) {
    table.frequency[i] = rope_frequency(spec, head_dim, i);
    table.fine_cos[i] = 1.0;
    table.fine_sin[i] = 0.0;
    table.coarse_cos[i] = std::cos(table.frequency[i]);  // the turn by one position, for the recurrence below
    table.coarse_sin[i] = std::sin(table.frequency[i]);
  }
  for (int32_t b = 1; b < kFine; ++b) {
    const double *c = table.fine_cos + (b - 1) * n, *s = table.fine_sin + (b - 1) * n;
    for (int32_t i = 0; i < n; ++i) {
      table.fine_cos[b * n + i] = c[i] * table.coarse_cos[i] - s[i] * table.coarse_sin[i];
      table.fine_sin[b * n + i] = s[i] * table.coarse_cos[i] + c[i] * table.coarse_sin[i];
    }
  }
  set_coarse(table, 0);
}

void set_rope_position(RopeTable& table, int32_t pos) {
  const int32_t coarse = pos >> kFineBits, fine = pos & (kFine - 1), n = table.pairs;
  if (coarse != table.coarse) set_coarse(table, coarse);
  const double *c = table.fine_cos + fine * n, *s = table.fine_sin + fine * n;
  for (int32_t i = 0; i < n; ++i) {
    table.cos[i] = static_cast<float>(table.coarse_cos[i] * c[i] - table.coarse_sin[i] * s[i]);
    table.sin[i] = static_cast<float>(table.coarse_sin[i] * c[i] + table.coarse_cos[i] * s[i]);
  }
}

}  // namespace kvloom::cpu
