// The two inner loops of the short_rows kernel: dot products of a few rows with some keys, and weighted sums of values. Rows of K and V
// are read where they lie, two vectors at a time, in the order that is cheapest for the type; q and o are kept in that order too.
//
// Every (row, key) score and every (row, dim) sum is formed in the same order whatever the block, so a row's bits do not depend on the
// rows beside it. Compiled once a target.
#pragma once

#include "kvloom/cpu/short_rows_lines.h"

namespace kvloom::cpu::KVLOOM_TARGET {
namespace {

inline constexpr int kPair = 2 * kLanes;  // elements that are loaded together
inline constexpr int kMaxBlockRows = 6;   // rows whose accumulators fit the registers

/// Rows of K or V by column of a tile: row t begins at row[t] + offset. One list serves all heads of a tile.
struct Rows {
  const char* const* row;
  int64_t offset;  // bytes
};

/// The dim that element i of a row in pair order holds.
template <DType kType>
int32_t dim_in_pair_order(int32_t i) {
  if (kType != DType::bf16) return i;
  const int32_t lane = i % kPair;
  return i - lane + (lane < kLanes ? 2 * lane : 2 * (lane - kLanes) + 1);
}

/// Half 0 or 1 of the pair that begins at element i of a row.
template <DType kType, int kHalf>
KVLOOM_SIMD Vec load_half(const char* row, int64_t i) {
  if constexpr (kType == DType::f32) return load(reinterpret_cast<const float*>(row) + i + kHalf * kLanes);
  if constexpr (kType == DType::f16) return load_f16(reinterpret_cast<const uint16_t*>(row) + i + kHalf * kLanes);
  if constexpr (kType == DType::bf16 && kHalf == 0) return load_bf16_even(reinterpret_cast<const uint16_t*>(row) + i);
  if constexpr (kType == DType::bf16 && kHalf == 1) return load_bf16_odd(reinterpret_cast<const uint16_t*>(row) + i);
}

/// Keys that one call of score_block takes: ten or twelve accumulators, where eight would leave no slack between the latency of an fma
/// and two of them a cycle.
constexpr int block_keys(int rows) { return rows == 1 ? 8 : 12 / rows; }

/// The fewest steps of `bytes` bytes that read whole lines.
constexpr int steps_of_whole_lines(int64_t bytes) {
  int steps = 1;
  while (steps * bytes % kLineBytes != 0) ++steps;
  return steps;
}

/// Part `part` of `parts` of fetching `count` lines from `lines` on. All are constants once the loop around it is unrolled.
KVLOOM_SIMD void fetch_share(const char* lines, int count, int part, int parts) {
#pragma GCC unroll 16
  for (int j = part * count / parts; j < (part + 1) * count / parts; ++j) __builtin_prefetch(lines + j * kLineBytes, 0, 3);
}

/// acc[r][t] += half a pair of q[r] . k[t]; whichever side is smaller stays in registers.
template <DType kType, int kHalf, int kRows, int kKeys>
KVLOOM_SIMD void score_half(const char* const (&k)[kKeys], const float* q, int64_t q_row, int64_t i, Vec (&acc)[kRows][kKeys]) {
  constexpr bool kHoldRows = kRows <= kKeys;
  constexpr int kHeld = kHoldRows ? kRows : kKeys, kPassing = kHoldRows ? kKeys : kRows;
  const auto row = [&](int r) __attribute__((always_inline)) { return load(q + r * q_row + i + kHalf * kLanes); };
  const auto key = [&](int t) __attribute__((always_inline)) { return load_half<kType, kHalf>(k[t], i); };
  Vec held[kHeld];
#pragma GCC unroll 8
  for (int h = 0; h < kHeld; ++h) held[h] = kHoldRows ? row(h) : key(h);
#pragma GCC unroll 8
  for (int p = 0; p < kPassing; ++p) {
    const Vec x = kHoldRows ? key(p) : row(p);
#pragma GCC unroll 8
    for (int h = 0; h < kHeld; ++h) {
      Vec& sum = kHoldRows ? acc[h][p] : acc[p][h];
      sum = accumulate(sum, held[h], x);
    }
  }
}

/// s[r][t] = q[r] . k[t] over `dims` dims, a multiple of kPair. With kFetch, as many lines are fetched as are read, one after the other
/// between products: bursts are lost, since a core drops what it has no buffer for.
template <DType kType, int kRows, bool kFetch>
KVLOOM_SIMD void score_block(const Rows& keys, int32_t first, int32_t dims, const float* q, int64_t q_row, float* s, int64_t s_row,
                             LineCursor& lines) {
  constexpr int kKeys = block_keys(kRows);
  const char* k[kKeys];
#pragma GCC unroll 8
  for (int t = 0; t < kKeys; ++t) k[t] = keys.row[first + t] + keys.offset;
  Vec acc[kRows][kKeys];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kKeys; ++t) acc[r][t] = set(0.0f);
  }
  constexpr int kStepBytes = kKeys * kPair * size_of(kType);
  constexpr int kSteps = steps_of_whole_lines(kStepBytes), kLines = kSteps * kStepBytes / kLineBytes;
  int32_t i = 0;
  for (; i + kSteps * kPair <= dims; i += kSteps * kPair) {
    const char* const ahead = kFetch ? lines.take(kLines) : nullptr;
#pragma GCC unroll 8
    for (int u = 0; u < kSteps; ++u) {
      if (kFetch) fetch_share(ahead, kLines, 2 * u, 2 * kSteps);
      score_half<kType, 0, kRows, kKeys>(k, q, q_row, i + u * kPair, acc);
      if (kFetch) fetch_share(ahead, kLines, 2 * u + 1, 2 * kSteps);
      score_half<kType, 1, kRows, kKeys>(k, q, q_row, i + u * kPair, acc);
    }
  }
  for (; kSteps > 1 && i < dims; i += kPair) {
    score_half<kType, 0, kRows, kKeys>(k, q, q_row, i, acc);
    score_half<kType, 1, kRows, kKeys>(k, q, q_row, i, acc);
  }
  constexpr int kCount = kRows * kKeys, kLast = kCount - 1;
  const auto at = [&](int e) __attribute__((always_inline)) { return acc[min_of(e, kLast) / kKeys][min_of(e, kLast) % kKeys]; };
#pragma GCC unroll 8
  for (int j = 0; j < kCount; j += 4) {
    float sum[4];
    sum_lanes_of_four(at(j), at(j + 1), at(j + 2), at(j + 3), sum);
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      if (j + e < kCount) s[(j + e) / kKeys * s_row + (j + e) % kKeys] = sum[e];
    }
  }
}

/// Scores of kRows rows against keys [begin, end). k and s reach block_keys beyond `end`; what comes out there is of no use.
template <DType kType, int kRows, bool kFetch>
void score_keys(const Rows& k, int32_t begin, int32_t end, int32_t dims, const float* q, int64_t q_row, float* s, int64_t s_row,
                LineCursor& lines) {
  LineCursor at = lines;  // a copy stays in registers
  for (int32_t t = begin; t < end; t += block_keys(kRows)) score_block<kType, kRows, kFetch>(k, t, dims, q, q_row, s + t, s_row, at);
  lines = at;
}

/// acc[r] += weight[r] * values [first, first + kTokens), for kVecs vectors of dims from dim i; kLines lines are fetched meanwhile.
template <DType kType, int kTokens, int kLines, int kRows, int kVecs>
KVLOOM_SIMD void add_tokens(const char* const* v, int64_t offset, int32_t first, int64_t i, const float* s, int64_t s_row,
                            Vec (&acc)[kRows][kVecs], LineCursor& lines) {
  const char* const ahead = kLines > 0 ? lines.take(kLines) : nullptr;
#pragma GCC unroll 8
  for (int u = 0; u < kTokens; ++u) {
    fetch_share(ahead, kLines, u, kTokens);
    const char* const row = v[first + u] + offset;
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; j += 2) {  // a pair at a time: twelve accumulators leave no room for more
      const Vec even = load_half<kType, 0>(row, i + j * kLanes), odd = load_half<kType, 1>(row, i + j * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vec weight = set(s[r * s_row + first + u]);
        acc[r][j] = accumulate(acc[r][j], weight, even);
        acc[r][j + 1] = accumulate(acc[r][j + 1], weight, odd);
      }
    }
  }
}

/// o[r] = rescale[r] * o[r] + sum over t < n of s[r][t] * v[t], for kPairs pairs of dims from dim i. rescale nullptr: all 1.
template <DType kType, int kRows, int kPairs, bool kFetch>
KVLOOM_SIMD void value_block(const char* const* v, int64_t offset, int32_t n, int32_t i, const float* s, int64_t s_row,
                             const float* rescale, float* o, int64_t o_row, LineCursor& lines) {
  constexpr int kVecs = 2 * kPairs;
  Vec acc[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j) acc[r][j] = load(o + r * o_row + i + j * kLanes);
  }
  if (rescale) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < kVecs; ++j) acc[r][j] = mul(acc[r][j], set(rescale[r]));
    }
  }
  int32_t t = 0;
  constexpr int64_t kTokenBytes = kPairs * kPair * size_of(kType);
  constexpr int kTokens = max_of(4, steps_of_whole_lines(kTokenBytes)), kLines = kFetch ? kTokens * kTokenBytes / kLineBytes : 0;
  for (; t + kTokens <= n; t += kTokens) add_tokens<kType, kTokens, kLines>(v, offset, t, i, s, s_row, acc, lines);
  for (; t < n; ++t) add_tokens<kType, 1, 0>(v, offset, t, i, s, s_row, acc, lines);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j) store(o + r * o_row + i + j * kLanes, acc[r][j]);
  }
}

/// o[r] = rescale[r] * o[r] + sum over t in [begin, end) of s[r][t] * v[t], for kRows rows and `dims` dims, a multiple of kPair. `batch`
/// values are summed before o goes back to memory: as many as the first-level cache holds, lest every line be fetched twice.
template <DType kType, int kRows, bool kFetch>
void add_values(const Rows& v, int32_t begin, int32_t end, int32_t batch, int32_t dims, const float* s, int64_t s_row, const float* rescale,
                float* o, int64_t o_row, LineCursor& lines) {
  constexpr int kPairs = kRows == 1 ? 4 : (kRows == 2 ? 2 : 1);  // 6 to 12 accumulators; 3 x 4 spill
  LineCursor at = lines;
  for (int32_t t = begin; t < end; t += batch) {
    const int32_t n = min_of(batch, end - t);
    int32_t i = 0;
    for (; i + kPairs * kPair <= dims; i += kPairs * kPair) {
      value_block<kType, kRows, kPairs, kFetch>(v.row + t, v.offset, n, i, s + t, s_row, rescale, o, o_row, at);
    }
    for (; i < dims; i += kPair) value_block<kType, kRows, 1, kFetch>(v.row + t, v.offset, n, i, s + t, s_row, rescale, o, o_row, at);
    rescale = nullptr;
  }
  lines = at;
}

using ScoreKeys = void (*)(const Rows& k, int32_t begin, int32_t end, int32_t dims, const float* q, int64_t q_row, float* s,
                           int64_t s_row, LineCursor& lines);
using AddValues = void (*)(const Rows& v, int32_t begin, int32_t end, int32_t batch, int32_t dims, const float* s, int64_t s_row,
                           const float* rescale, float* o, int64_t o_row, LineCursor& lines);

/// The inner loops of one type, by rows - 1 and by whether lines are fetched.
struct BlockKernels {
  ScoreKeys score[kMaxBlockRows][2];
  AddValues values[kMaxBlockRows][2];
};

template <DType kType>
const BlockKernels& block_kernels() {
  static constexpr BlockKernels kernels{{{score_keys<kType, 1, false>, score_keys<kType, 1, true>},
                                         {score_keys<kType, 2, false>, score_keys<kType, 2, true>},
                                         {score_keys<kType, 3, false>, score_keys<kType, 3, true>},
                                         {score_keys<kType, 4, false>, score_keys<kType, 4, true>},
                                         {score_keys<kType, 5, false>, score_keys<kType, 5, true>},
                                         {score_keys<kType, 6, false>, score_keys<kType, 6, true>}},
                                        {{add_values<kType, 1, false>, add_values<kType, 1, true>},
                                         {add_values<kType, 2, false>, add_values<kType, 2, true>},
                                         {add_values<kType, 3, false>, add_values<kType, 3, true>},
                                         {add_values<kType, 4, false>, add_values<kType, 4, true>},
                                         {add_values<kType, 5, false>, add_values<kType, 5, true>},
                                         {add_values<kType, 6, false>, add_values<kType, 6, true>}}};
  return kernels;
}

}  // namespace
}  // namespace kvloom::cpu::KVLOOM_TARGET
