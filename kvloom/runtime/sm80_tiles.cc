#include "kvloom/runtime/sm80_tiles.h"

#include "kvloom/base/math.h"
#include "kvloom/base/span.h"

namespace kvloom::runtime {
namespace {

constexpr int32_t kLongDim = 256;  // of one warp's rows; beyond it the warps share the dims

// In the order of preference; CTAs an SM are what the registers allow.
constexpr Sm80Tiles kShort[] = {{{16, 64, 1, 4, 3, true, 0}, {128, 64, 4, 1, 2, false, 32}},
                                {{16, 64, 1, 4, 3, true, 0}, {64, 64, 4, 1, 2, false, 32}}};
constexpr Sm80Tiles kMiddle[] = {{{16, 64, 1, 4, 2, true, 0}, {128, 64, 4, 1, 1, false, 32}},
                                 {{16, 64, 1, 4, 2, true, 0}, {64, 64, 4, 1, 1, false, 32}},
                                 {{16, 32, 1, 2, 2, true, 0}, {32, 32, 2, 1, 2, false, 0}}};
constexpr Sm80Tiles kLong[] = {{{16, 64, 1, 4, 1, true, 0}, {64, 64, 4, 1, 1, false, 32}},
                               {{16, 32, 1, 2, 1, true, 0}, {32, 32, 2, 1, 1, false, 0}}};
constexpr Sm80Tiles kWide[] = {{{16, 32, 1, 4, 1, false, 0}, {16, 32, 1, 4, 1, false, 0}}};

Span<const Sm80Tiles> candidates(const AttentionSpec& s) {
  const int32_t dim = max_of(s.head_dim_qk, s.head_dim_vo);
  if (dim > kLongDim) return {kWide, 1};
  if (dim > 192) return {kLong, 2};
  if (dim > 128) return {kMiddle, 3};
  return {kShort, 2};
}

int64_t row_bytes(int64_t dim, int32_t element) { return round_up<int64_t>(dim * element, 128); }

/// CTAs of `t` that fit an SM, up to those aimed at; 0: not one.
int32_t fitting_ctas(const AttentionSpec& s, const GpuTarget& g, const Sm80Tile& t, bool fixed_split) {
  const int64_t bytes = sm80_shared_bytes(s, t, fixed_split);
  if (bytes > g.shared_bytes_block) return 0;
  return int32_t(min_of<int64_t>(t.ctas, g.shared_bytes_sm / (bytes + 1024)));  // 1 KiB a CTA is the system's
}

}  // namespace

int64_t sm80_shared_bytes(const AttentionSpec& s, const Sm80Tile& t, bool fixed_split) {
  const int32_t size = size_of(s.kv_dtype);
  const bool rotates = s.variant.rope.mode != RopeMode::none, wide = s.head_dim_vo > kLongDim;
  int64_t bytes = t.rows * row_bytes(s.head_dim_qk, 2);
  bytes += 2 * t.keys * (row_bytes(s.head_dim_qk, size) + row_bytes(s.head_dim_vo, size));
  if (rotates && is_fp8(s.kv_dtype)) bytes += t.keys * row_bytes(s.head_dim_qk, 2);
  if (rotates) bytes += s.head_dim_qk * 4;
  if (fixed_split) bytes += t.rows * (int64_t(s.head_dim_vo) + t.warps_kv) * 4;
  if (wide) bytes += t.rows * (row_bytes(t.keys, 2) + t.warps_kv * 4);
  bytes += t.keys * (2 * 16 + 8 * 4 + 4) + t.rows * (36 + t.keys / 32 * 16);  // places and positions of keys; rows, ranges and mask words
  return bytes + 1024;                                                        // the item, its group, alignment
}

Sm80Tiles sm80_tiles(const AttentionSpec& s, const GpuTarget& g, bool fixed_split) {
  // Two CTAs hide each other's waits: a smaller tile of which two fit is better than a larger one alone, where registers allow two at all.
  for (const bool as_aimed : {true, false}) {
    for (Sm80Tiles p : candidates(s)) {
      const int32_t memory = fitting_ctas(s, g, p.memory, fixed_split), compute = fitting_ctas(s, g, p.compute, fixed_split);
      if (memory == 0 || compute == 0 || (as_aimed && compute < p.compute.ctas)) continue;
      p.memory.ctas = memory;
      p.compute.ctas = compute;
      return p;
    }
  }
  return {};
}

}  // namespace kvloom::runtime
