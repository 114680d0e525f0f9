// A variant's hooks and the masks over the scores of some rows. Loops run over keys and hold no call, so the compiler vectorises the hooks
// as they stand.
#include "kvloom/cpu/keys.h"
#include "kvloom/cpu/score.h"
#include "kvloom/variants/compose.h"

namespace kvloom::cpu::KVLOOM_TARGET {
namespace {

/// A row of scores and what is known of it.
struct ScoreRow {
  float* __restrict s;  // [columns]; nothing else that the hooks read lies there
  Coord first;          // coordinates of column 0
  const int32_t* key_pos;
  int32_t columns;
};

inline __attribute__((always_inline)) Coord coord_at(const ScoreRow& row, int32_t j) {
  Coord c = row.first;
  c.kv_index += j;
  c.kv_pos = row.key_pos ? row.key_pos[j] : c.kv_pos + j;
  return c;
}

/// s[begin, end) = masked, the value of a masked key.
inline __attribute__((always_inline)) void mask_columns(const ScoreRow& row, int32_t begin, int32_t end, float masked) {
  float* __restrict s = row.s;
  for (int32_t j = begin; j < end; ++j) s[j] = masked;
}

/// Logits, or the weights of reduction sum, of columns [begin, end): hooks never see a key that is not the chunk's.
template <class Variant>
inline __attribute__((always_inline)) void apply_hooks(const ScoreRow& row, const VariantParams& p, int32_t begin, int32_t end) {
  float* __restrict s = row.s;
  const int32_t* __restrict pos = row.key_pos;
  constexpr bool kHasLogit = variants::HasLogit<Variant, VariantParams>;
  constexpr bool kSum = variants::reduction_of<Variant>() == Reduction::sum;
  if constexpr (!kHasLogit && !kSum) return;
  const auto one = [&](int32_t j, int32_t kv_pos) __attribute__((always_inline)) {
    Coord c = row.first;
    c.kv_index += j;
    c.kv_pos = kv_pos;
    float x = s[j];
    if constexpr (kHasLogit) x = Variant::logit(x, c, p);
    if constexpr (kSum) {
      s[j] = Variant::weight(x, p);
    } else {
      s[j] = x * kLog2e;
    }
  };
  if (pos) {
    for (int32_t j = begin; j < end; ++j) one(j, pos[j]);
  } else {
    for (int32_t j = begin; j < end; ++j) one(j, row.first.kv_pos + j);
  }
}

/// The mask that is code: the variant's keep, for columns [begin, end), a word of 32 keys at a time where the variant can.
template <class Variant>
inline __attribute__((always_inline)) void apply_keep(const ScoreRow& row, const VariantParams& p, int32_t begin, int32_t end,
                                                      float masked) {
  float* __restrict s = row.s;
  if constexpr (variants::HasKeep32<Variant, VariantParams>) {
    for (int32_t j0 = begin; j0 < end; j0 += 32) {
      const uint32_t word = Variant::keep32(coord_at(row, j0), p);
      const int32_t n = min_of(32, end - j0);
      if (n == 32) {
        for (int32_t j = 0; j < 32; ++j) s[j0 + j] = (word & (1u << j)) ? s[j0 + j] : masked;
      } else {
        for (int32_t j = 0; j < n; ++j) s[j0 + j] = (word & (1u << j)) ? s[j0 + j] : masked;
      }
    }
  } else if constexpr (variants::HasKeep<Variant, VariantParams>) {
    for (int32_t j = begin; j < end; ++j) s[j] = Variant::keep(coord_at(row, j), p) ? s[j] : masked;
  }
}

/// The mask that is data, where positions count up: two runs of columns are kept, [0, prefix_end) and [begin, end).
inline __attribute__((always_inline)) void apply_linear_range(const ScoreTile& tile, const PackedRow& r, const ScoreRow& row,
                                                              const KeyRange& range, float masked) {
  const KeptTokens kept = kept_tokens(*tile.group, range, r.q_pos, r.prefix);
  const int32_t live_begin = tile.live_begin, live_end = tile.live_end;
  const int32_t prefix_end = clamp_to(kept.prefix_end - tile.token_begin, live_begin, live_end);
  const int32_t begin = clamp_to(kept.begin - tile.token_begin, prefix_end, live_end);
  const int32_t end = clamp_to(kept.end - tile.token_begin, begin, live_end);
  mask_columns(row, 0, live_begin, masked);
  mask_columns(row, prefix_end, begin, masked);
  mask_columns(row, end, row.columns, masked);
}

inline __attribute__((always_inline)) void apply_listed_range(const ScoreTile& tile, const PackedRow& r, const ScoreRow& row,
                                                              const KeyRange& range, float masked) {
  float* __restrict s = row.s;
  const int32_t* __restrict pos = tile.key_pos;
  for (int32_t j = tile.live_begin; j < tile.live_end; ++j) s[j] = keeps(range, r.prefix, r.q_pos, pos[j]) ? s[j] : masked;
  mask_columns(row, 0, tile.live_begin, masked);
  mask_columns(row, tile.live_end, row.columns, masked);
}

template <class Variant>
void score_rows(const Job& job, const ScoreTile& tile) {
  const VariantParams& p = job.params->variant;
  const KeyRange& range = job.spec->variant.range;
  const float masked = variants::reduction_of<Variant>() == Reduction::sum ? 0.0f : neg_inf();
  for (int32_t i = 0; i < tile.row_count; ++i) {
    const PackedRow& r = tile.rows[i];
    const ScoreRow row{tile.s + i * tile.stride,
                       Coord{r.request, r.q_index, r.q_pos, tile.group->kv_index0 + tile.token_begin,
                             tile.group->kv_pos0 + tile.token_begin, r.q_head, tile.kv_head},
                       tile.key_pos, tile.columns};
    apply_hooks<Variant>(row, p, tile.live_begin, tile.live_end);
    apply_keep<Variant>(row, p, tile.live_begin, tile.live_end, masked);
    if (tile.key_pos) {
      apply_listed_range(tile, r, row, range, masked);
    } else {
      apply_linear_range(tile, r, row, range, masked);
    }
  }
}

}  // namespace
}  // namespace kvloom::cpu::KVLOOM_TARGET
