// fixed_split: items with many rows beside those with few. The bits of a row may not hang on how many others there are, so what is added up to what
// stays the same: pieces that would be one warp's are added up by themselves, then those sums to the chunk's, then chunks. But here a warp has 16 rows of its
// own and does all of that for half of their dims: nothing is exchanged, and every piece that is fetched is used by 64 rows.
#pragma once

#include "kvloom/device/stream/store.cuh"

namespace kvloom::stream {

template <AttendConfig C, class V>
struct ManyRows {
  using Rows = Warp<C, V, true>;
  static constexpr bool kSum = block::has_weight<V>();
  static constexpr int kTiles = Rows::kDimTiles, kKeys = C.step_keys();
  static_assert(C.heads == 1 && C.step_pieces() == 1);

  /// The lane's two rows and what it has of their O.
  struct Sums {
    float o[kTiles][4];
    block::FoldState row[2];
    __device__ __forceinline__ void clear() {
#pragma unroll
      for (int d = 0; d < kTiles; ++d) o[d][0] = o[d][1] = o[d][2] = o[d][3] = 0.0f;
      row[0] = row[1] = {};
    }
    __device__ __forceinline__ void take(const float (&part)[kTiles][4], const block::FoldState& low, const block::FoldState& high) {
      const block::Rescaled by[2] = {row[0].template take<kSum>(low), row[1].template take<kSum>(high)};
#pragma unroll
      for (int d = 0; d < kTiles; ++d) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[d][e] = block::fold_into(o[d][e], part[d][e], by[e / 2]);
      }
    }
  };

  Rows& rows;
  SharedMemory<C, V>& m;
  Sums chunk = {};
  block::FoldState all[2] = {};  // of all chunks so far; O in shared memory: it is looked at once a chunk

  /// What one warp would have done of a chunk, into that chunk's.
  __device__ __forceinline__ void take_turn() {
    const auto& s = rows.state.softmax;
    const float scale = rows.scaling().scale;
    chunk.take(rows.state.o[0], {block::FoldState::reference_of(s.max[0][0], scale), block::quad_sum(s.sum[0][0])},
               {block::FoldState::reference_of(s.max[0][1], scale), block::quad_sum(s.sum[0][1])});
    rows.state.clear();
  }

  /// Keys of a pass that every row keeps, and what their scores are multiplied by.
  struct Whole {
    int32_t begin, end;
    block::Scaling scaling;
    __device__ __forceinline__ bool has(int32_t token) const { return token >= begin && token + kKeys <= end; }
  };
  using Scores = sm80::Scores<Rows::S>;

  /// Two pieces that all rows keep, the second one right behind the first in the ring: scores of both at once, then one after the other what
  /// Warp::step does with one.
  __device__ __forceinline__ void step_of_two(const Pass<C>& pass, const Whole& whole, int32_t token, int32_t second) {
    constexpr sm80::AttendConfig S = Rows::S;
    using K = sm80::Keys<S, false, S.key_tiles()>;
    constexpr int kSteps = C.head_dim_qk / 16, kPieceK = int(sizeof m.k[0]), kPieceV = int(sizeof m.v[0]);
    static_assert(K::kTogether == S.key_tiles());
    const block::Scaling& scaling = whole.scaling;
    const uint32_t k = ptx::shared_address(m.k[rows.at.at]) + rows.lane_k, v = ptx::shared_address(m.v[rows.at.at]) + rows.lane_v;
    const K keys[2] = {{{k}}, {{k + kPieceK}}};
    const block::Rows of = rows.rows();
    const block::WarpKeys there[2] = {keys_at(pass, token), keys_at(pass, second)};
    Scores x[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (Rows::kForm == block::Form::biased) block::start_biased(x[i].s, of, 0, there[i], 1.0f / scaling.by.hooks);
      else sm80::clear_scores(x[i].s);
    }
    uint32_t raw[2][2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) keys[i].load(raw[0][i], 0, 0);
#pragma unroll
    for (int d = 0; d < kSteps; ++d) {
      uint32_t a[4];
      rows.q.get(a, 0, d);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (d + 1 < kSteps) keys[i].load(raw[(d + 1) % 2][i], 0, d + 1);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t b[K::kTogether][2];
        K::operands(b, raw[d % 2][i]);
#pragma unroll
        for (int n = 0; n < K::kTogether; ++n) ptx::warp_mma_m16n8k16<S.qk_dtype()>(x[i].s[0][n], a, b[n][0], b[n][1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      block::warp_apply_variant<V, Rows::kForm, true>(x[i].s, rows.args.params.variant, scaling.by, of, 0, there[i], false);
      auto& state = rows.state;
      if constexpr (!kSum) {
        const auto tops = state.softmax.tops(x[i].s);
        if (state.softmax.warp_must_raise(tops, scaling.slack)) state.softmax.raise(tops, scaling.scale, scaling.slack).apply(state.o);
      }
      sm80::weigh<S, V>(x[i], state, scaling.scale);
      sm80::warp_accumulate<S, S.key_tiles() / 2, kTiles>(state.o, x[i].p, v + uint32_t(i * kPieceV));
    }
  }
  __device__ __forceinline__ block::WarpKeys keys_at(const Pass<C>& pass, int32_t token) const {
    return {&pass.group, token, 0, pass.kv_head, pass.group.kv_pos0 + token, nullptr, nullptr, 0, kKeys, 1};
  }

  /// All pieces of a pass, which is a chunk.
  __device__ __forceinline__ void attend(Pass<C>& pass, block::Marks& marks) {
    rows.pass = &pass;
    if (pass.new_rows) {
      m.query.wait_full(rows.query_at);
      rows.q.hold();
      rows.leave_queries();
      rows.query_at.next();
    }
    chunk.clear();
    rows.state.clear();
    const bool idle = rows.row0 >= pass.item.row_count;
    const int turns = pass.num_pieces / C.turn_pieces();
    if constexpr (block::kMarks) {
      if (pass.num_pieces > 0) m.piece.wait_full(rows.at);
      marks.fed();
    }
    const block::TileWalk walk = pass.walk;  // in registers
    const Whole whole{pass.masked ? 0 : pass.hull.all_begin, pass.masked ? 0 : pass.hull.all_end, pass.scaling[0]};
#pragma unroll 1
    for (int share = 0; turns > 0 && share < C.head_warps(); ++share) {
#pragma unroll 1
      for (int turn = 0; turn < turns;) {
        const int32_t token = walk.template tile<kKeys>(turn * C.head_warps() + share);
        const bool two = turn + 1 < turns && rows.at.at + 1 < C.pieces;  // next to each other in the ring
        const int32_t second = walk.template tile<kKeys>((turn + 1) * C.head_warps() + share);
        if (two && whole.has(token) && whole.has(second)) {
          m.piece.wait_full(rows.at);
          m.piece.wait_full({rows.at.at + 1, rows.at.parity});
          if (!idle) step_of_two(pass, whole, token, second);
          m.piece.warp_leave(rows.at);
          rows.at.next();
          turn += 2;
        } else {
          m.piece.wait_full(rows.at);
          if (!idle || block::kArrivingLanes != 1) rows.step(token);  // barriers for racecheck are of all warps
          turn += 1;
        }
        m.piece.warp_leave(rows.at);
        rows.at.next();
      }
      take_turn();
    }
    marks.attended();
    take_chunk(pass);
    if (pass.written && !idle) store(pass);
  }

 private:
  __device__ __forceinline__ void take_chunk(const Pass<C>& pass) {
    const ScaleParams& scales = rows.args.params.variant.scale;
    const float factor = scales.v_per_head ? scales.v_per_head[pass.kv_head] : scales.v;
#pragma unroll
    for (int d = 0; d < kTiles; ++d) {
#pragma unroll
      for (int e = 0; e < 4; ++e) chunk.o[d][e] = __fmul_rn(chunk.o[d][e], factor);
    }
    if (!pass.begins) {
      const block::Rescaled by[2] = {all[0].template take<kSum>(chunk.row[0]), all[1].template take<kSum>(chunk.row[1])};
#pragma unroll
      for (int d = 0; d < kTiles; ++d) {
        const float4 o = all_o(d);
        const float before[4] = {o.x, o.y, o.z, o.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) chunk.o[d][e] = block::fold_into(before[e], chunk.o[d][e], by[e / 2]);
      }
    } else {
      all[0] = chunk.row[0], all[1] = chunk.row[1];
    }
    if (pass.written) return;
#pragma unroll
    for (int d = 0; d < kTiles; ++d) all_o(d) = make_float4(chunk.o[d][0], chunk.o[d][1], chunk.o[d][2], chunk.o[d][3]);
  }
  /// This lane's part of n8 tile d.
  __device__ __forceinline__ float4& all_o(int d) const { return reinterpret_cast<float4*>(m.folded.o)[(rows.warp * kTiles + d) * 32 + rows.lane]; }
  __device__ __forceinline__ void store(Pass<C>& pass) {
    const AttendArgs& args = rows.args;
    const int quad = rows.lane & 3;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = rows.row0 + rows.lane / 4 + 8 * h, dim0 = rows.half * (C.head_dim_vo / 2) + 2 * quad;
      if (r >= pass.item.row_count) continue;
      const block::FoldState& state = all[h];
      const bool first = rows.half == 0 && quad == 0;
      if (pass.partial_row >= 0) {
        const int64_t at = int64_t(pass.partial_row) + int64_t(pass.kv_head - pass.item.kv_head) * pass.item.row_count + r;
        char* const o = reinterpret_cast<char*>(args.scratch.partial_o + at * C.head_dim_vo);
#pragma unroll
        for (int d = 0; d < kTiles; ++d) block::store_pair<DType::f32>(o, dim0 + 8 * d, chunk.o[d][2 * h], chunk.o[d][2 * h + 1]);
        if (first) reinterpret_cast<block::FoldState*>(args.scratch.partial_lse)[at] = state;
      } else {
        const block::PackedRow& to = pass.row[r];
        const block::RowOutput out = block::row_output<V>(args, to.token, to.q_head, state.template lse<kSum>(), size_of(C.o_dtype));
        const float normalise = state.template normalise<kSum>();
        const auto last = [&](float x) { return __fmul_rn(__fmul_rn(x, normalise), out.factor); };
#pragma unroll
        for (int d = 0; d < kTiles; ++d) block::store_pair<C.o_dtype>(out.o, dim0 + 8 * d, last(chunk.o[d][2 * h]), last(chunk.o[d][2 * h + 1]));
        if (out.lse && first) *out.lse = out.lse_value;
      }
    }
  }
};

/// Where the warps that compute are in their rings, between items.
template <AttendConfig C>
struct TeamPlaces {
  RingPlace<kPasses> pass;
  RingPlace<1> query;
  RingPlace<C.pieces> piece;  // the next pass's first
};

/// An item for one KV head, chunk after chunk: `work(pass)` does one.
template <AttendConfig C, class V, class F>
__device__ __forceinline__ void team_item(const AttendArgs& args, SharedMemory<C, V>& m, TeamPlaces<C>& places, block::Marks& marks, F&& work) {
#pragma unroll 1
  for (bool more = true; more; places.pass.next()) {
    m.passes.wait_full(places.pass);
    Pass<C>& pass = m.pass[places.pass.at];
    more = !pass.last_of_rows;
    work(pass);
    team_end_pass<C, V>(args, m, pass, places.pass, marks);
  }
}
template <AttendConfig C, class V>
__device__ __forceinline__ void team_item_of_many(const AttendArgs& args, SharedMemory<C, V>& m, TeamPlaces<C>& places, block::Marks& marks) {
  WarpPlaces<C> at(0);
  at.query = places.query, at.piece = places.piece;
  Warp<C, V, true> warp(args, m, at);
  ManyRows<C, V> rows{warp, m};
  team_item<C, V>(args, m, places, marks, [&](Pass<C>& pass) { rows.attend(pass, marks); });
  places.query = at.query, places.piece = at.piece;
}
template <AttendConfig C, class V>
__device__ __forceinline__ void team_item_of_few(const AttendArgs& args, SharedMemory<C, V>& m, TeamPlaces<C>& places, block::Marks& marks) {
  WarpPlaces<C> at = first_places<C>();
  const int first = at.piece.at;  // from the pass's first piece to the warp's
  at.query = places.query, at.piece = {places.piece.at + first, places.piece.parity};
  Warp<C, V> warp(args, m, at);
  team_item<C, V>(args, m, places, marks, [&](Pass<C>& pass) {
    warp.attend(pass, marks);
    team_store(warp, pass, m);
  });
  places.query = at.query, places.piece = {at.piece.at - first, at.piece.parity};
}

/// The warps that compute: item after item, of either class.
template <AttendConfig C, class V>
__device__ __forceinline__ void team_run_many(const AttendArgs& args, SharedMemory<C, V>& m, block::Marks& marks) {
  TeamPlaces<C> places;
  marks.first(view_plan(args.plan));
#pragma unroll 1
  for (;;) {
    m.passes.wait_full(places.pass);
    const Pass<C>& pass = m.pass[places.pass.at];
    if (pass.end) return;
    if (has_many_rows(pass)) team_item_of_many<C, V>(args, m, places, marks);
    else team_item_of_few<C, V>(args, m, places, marks);
  }
}

}  // namespace kvloom::stream
