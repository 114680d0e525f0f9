// The end of an item: rows that are final go to the output, partial ones to scratch, and are merged in list order (who does that: arrive.cuh).
#pragma once

#include "kvloom/attn/state.h"
#include "kvloom/base/math.h"
#include "kvloom/contract/attend_args.h"
#include "kvloom/device/block/arriving.cuh"
#include "kvloom/device/block/timeline.cuh"
#include "kvloom/device/block/variant.cuh"
#include "kvloom/device/ptx/math.cuh"
#include "kvloom/device/ptx/sync.cuh"

namespace kvloom::block {

/// A finished row of one (token, head): the sink's share, or what the variant's finish makes of it, then O and LSE in the caller's tensors.
struct RowOutput {
  char* o;       // [head_dim_vo]
  float* lse;    // nullptr: not wanted
  float factor;  // what O is multiplied by
  float lse_value;
};
template <class V>
__device__ __forceinline__ RowFinish finish_row(const VariantParams& p, float lse, int32_t q_head) {
  if constexpr (has_finish<V>()) return V::finish(lse, q_head, p);
  return sink_weights(lse, p.sink[q_head]);
}
template <class V>
__device__ __forceinline__ RowOutput row_output(const AttendArgs& args, int64_t token, int32_t q_head, float lse, int element_bytes) {
  const AttendParams& p = args.params;
  RowOutput out{static_cast<char*>(p.o) + (token * p.o_token + q_head * p.o_head) * element_bytes,
                p.lse ? p.lse + token * p.lse_token + q_head * p.lse_head : nullptr, 1.0f, lse};
  if (!p.bare_state && (has_finish<V>() || p.variant.sink)) {
    const RowFinish w = finish_row<V>(p.variant, lse, q_head);
    out.factor = w.factor;
    out.lse_value = w.lse;
  }
  return out;
}

template <DType kType>
__device__ __forceinline__ void store_pair(char* row, int dim, float a, float b) {
  if constexpr (kType == DType::f32) {
    *reinterpret_cast<float2*>(row + dim * 4) = make_float2(a, b);
  } else {
    *reinterpret_cast<uint32_t*>(row + dim * 2) = ptx::pack_16<kType>(a, b);
  }
}

/// a := a merged with b, a first. The one place where states are put together in turn: chunks of fixed_split in registers and partials in
/// scratch go through the same roundings. An empty b changes nothing.
struct FoldWeights {
  float a;
  float b;
};
__device__ __forceinline__ FoldWeights fold_lse(float& lse, float lse_b) {
  const MergeWeights w = merge_weights(lse, lse_b);
  lse = w.lse;
  return {w.a, w.b};
}
__device__ __forceinline__ float fold(float a, float b, const FoldWeights& w) { return w.b == 0.0f ? a : __fmaf_rn(b, w.b, __fmul_rn(a, w.a)); }

/// Partials of one row: where entry e lies.
struct RowPartials {
  const MergeEntry* entries;
  int32_t count;
  int32_t head;
  int32_t row;

  __device__ __forceinline__ MergeEntry entry(int32_t e) const {
    const uint2 words = reinterpret_cast<const uint2*>(entries)[e];  // sections begin at multiples of 64
    return {int32_t(words.x), int32_t(words.y)};
  }
  __device__ __forceinline__ int32_t at(const MergeEntry& e) const { return e.partial_row + head * e.head_stride + row; }
};

/// Dims d0 .. d0 + 3 of a row on their way through a merge. All lanes of a warp know all weights: they read the same few words, and need no
/// exchange.
struct MergedDims {
  float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float top = neg_inf();  // of the LSEs seen; what the weights refer to
  float total = 0.0f;     // of the weights
  float lse = 0.0f;

  __device__ __forceinline__ void scale(float by) { o = make_float4(o.x * by, o.y * by, o.z * by, o.w * by); }
  /// An empty partial adds nothing, whatever it holds.
  __device__ __forceinline__ void add(const float4& part, float weight) {
    if (weight == 0.0f) return;
    o = make_float4(o.x + part.x * weight, o.y + part.y * weight, o.z + part.z * weight, o.w + part.w * weight);
  }

  /// Entries e of a list, all at once: weights 2^(lse - top) of a common top.
  template <int kParts>
  __device__ __forceinline__ void add_weighted(const float4 (&part)[kParts], const float (&part_lse)[kParts]) {
    float new_top = top;
#pragma unroll
    for (int i = 0; i < kParts; ++i) new_top = fmaxf(new_top, part_lse[i]);
    const float guarded = new_top == neg_inf() ? 0.0f : new_top, old = ptx::ex2((top - guarded) * kLog2e);
    top = new_top;
    scale(old);
    total *= old;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const float weight = ptx::ex2((part_lse[i] - guarded) * kLog2e);
      total += weight;
      add(part[i], weight);
    }
  }
  __device__ __forceinline__ void finish_weighted() {
    scale(total == 0.0f ? 0.0f : 1.0f / total);
    lse = total == 0.0f ? neg_inf() : top + ptx::lg2(total) * kLn2;
  }

  /// The left fold of fixed_split.
  __device__ __forceinline__ void fold_in(const float4& part, float part_lse, bool first) {
    if (first) {
      o = part;
      lse = part_lse;
      return;
    }
    const FoldWeights w = fold_lse(lse, part_lse);
    o = make_float4(fold(o.x, part.x, w), fold(o.y, part.y, w), fold(o.z, part.z, w), fold(o.w, part.w, w));
  }
};

/// How a warp merges: so many rows of a unit at once, and of each so many partials together. A merge is a wait for L2, over and over; what is on its
/// way together is waited for once. Rows are all one; with other numbers of partials a row comes out rounded otherwise, unless all of them fit.
struct MergeShape {
  bool in_turn = false;  // fixed_split: the left fold of chunks; a fold is much code
  int partials = 16;
  int rows = 1;
  bool together = false;  // all warps of a team share the rows of all units that are to be merged; else those of one after the other
  int few_partials = 0;   // units with so many, or fewer, which is what a tile has that was cut once, ...
  int few_rows = 1;       // ... are merged so many rows at once: such units may have many

  KVLOOM_HD constexpr MergeShape of_few() const { return {in_turn, few_partials, few_rows, together}; }
};
KVLOOM_HD constexpr MergeShape merge_shape(bool in_turn) { return in_turn ? MergeShape{true, 4} : MergeShape{false, 16, 1, false, 2, 4}; }

/// Four dims of some rows that follow each other, d0 .. d0 + 3 (none where d0 >= dims), merged in list order; `rows`: that there are, `first`: the
/// first of them. How the weights come about: `kSum`: all are 1. In turn: chunk by chunk. Else those of some partials by their common maximum.
template <bool kSum, MergeShape kShape>
__device__ __forceinline__ void merge_dims(const Scratch& scratch, const RowPartials& first, int rows, int dims, int d0, MergedDims (&merged)[kShape.rows]) {
  constexpr int kRows = kShape.rows, kParts = kShape.partials;
#pragma unroll 1
  for (int32_t e0 = 0; e0 < first.count; e0 += kParts) {
    float4 part[kRows][kParts];
    float part_lse[kRows][kParts];
    MergeEntry entry[kParts];  // all of them before one is used, and no branch among them: waited for once
#pragma unroll
    for (int i = 0; i < kParts; ++i) entry[i] = first.entry(min_of(e0 + i, first.count - 1));
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int64_t at = first.at(entry[i]);
      const bool there = e0 + i < first.count;
#pragma unroll
      for (int r = 0; r < kRows; ++r) part[r][i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f), part_lse[r][i] = neg_inf();
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (!kSum && there && r < rows) part_lse[r][i] = scratch.partial_lse[at + r];
        if (there && r < rows && d0 < dims) part[r][i] = *reinterpret_cast<const float4*>(scratch.partial_o + (at + r) * dims + d0);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kSum) {
#pragma unroll
        for (int i = 0; i < kParts; ++i) merged[r].add(part[r][i], 1.0f);
      } else if constexpr (kShape.in_turn) {
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
          if (e0 + i < first.count) merged[r].fold_in(part[r][i], part_lse[r][i], e0 + i == 0);
        }
      } else {
        merged[r].add_weighted(part[r], part_lse[r]);
      }
    }
  }
  if constexpr (!kSum && !kShape.in_turn) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) merged[r].finish_weighted();
  }
}

/// `rows` rows of a unit from `row0` on by one warp: partials merged in list order, then stored.
template <class V, DType kType, MergeShape kShape>
__device__ __forceinline__ void warp_merge_rows(const AttendArgs& args, const PlanView& plan, const MergeUnit& unit, int head, int row0, int rows, int dims) {
  const int lane = int(threadIdx.x) & 31;
  const RowPartials partials{plan.entries.data + unit.entry_begin, unit.entry_count, head, row0};
#pragma unroll 1
  for (int d = 0; d < dims; d += 128) {
    const int d0 = d + 4 * lane;
    MergedDims merged[kShape.rows];
    merge_dims<has_weight<V>(), kShape>(args.scratch, partials, rows, dims, d0, merged);
#pragma unroll
    for (int r = 0; r < kShape.rows; ++r) {
      if (r >= rows) break;
      const uint32_t packed = uint32_t(unit.row_begin + row0 + r), token = args.group_size.divide(packed);
      const int32_t q_head = int32_t((unit.kv_head + head) * args.group_size.divisor + packed - token * args.group_size.divisor);
      const float4& o = merged[r].o;
      const RowOutput out = row_output<V>(args, token, q_head, merged[r].lse, size_of(kType));
      if (d0 < dims) {
        store_pair<kType>(out.o, d0, o.x * out.factor, o.y * out.factor);
        store_pair<kType>(out.o, d0 + 2, o.z * out.factor, o.w * out.factor);
      }
      if (out.lse && d == 0 && lane == 0) *out.lse = out.lse_value;
    }
  }
}

}  // namespace kvloom::block
