// What a warp finds out ahead of all others: the passes of a CTA's items, which rows they have and what those keep; and how Q is fetched.
#pragma once

#include "kvloom/device/block/refused.cuh"
#include "kvloom/device/ptx/cluster.cuh"
#include "kvloom/device/sm90/shared.cuh"

namespace kvloom::sm90 {

/// This CTA's number in its cluster.
template <AttendConfig C>
__device__ __forceinline__ int rank() {
  if constexpr (C.ctas > 1) return int(ptx::cluster_rank());
  return 0;
}

template <AttendConfig C>
__device__ __forceinline__ Reach reach_of(const Pass<C>& pass, int team) {
  const block::TileWalk& walk = pass.walk;
  if (pass.masked) return {0, walk.start + C.tile_kv, 0, 0};  // every warpgroup makes masks of every tile
  const bool plain = pass.scaling.by.others == 1.0f;
  block::KeptHull all = pass.warp_hull[4 * team];
#pragma unroll
  for (int w = 1; w < 4; ++w) block::widen(all, pass.warp_hull[4 * team + w]);
  return {all.any_prefix > walk.keys.begin ? walk.keys.begin : all.any_begin, max_of(all.any_end, all.any_prefix),
          max_of(round_up(all.all_begin, C.tile_kv), walk.last), plain ? all.all_end : 0};
}

/// Where the keys end that rows of the group keep, as far as it is easily said: at least `any_end`.
__device__ __forceinline__ int32_t seen_end_of(const KeyRange& range, const PlanView& plan, const RowGroup& group, int32_t any_begin, int32_t any_end) {
  if (any_begin >= any_end || group.row_list >= 0 || group.kv_position != KvPosition::linear) return any_end;
  const RowEntry last = row_of(plan, group, group.token_count - 1);
  return max_of(any_end, block::kept_tokens(range, last, group, {group.kv_begin, group.kv_end}).end);
}

/// Fills `pass` for one KV head of item `i`; ends with __syncwarp.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_make_pass(const AttendArgs& args, const PlanView& plan, int32_t i, int head, Pass<C>& pass) {
  const int lane = int(threadIdx.x) & 31;
  block::warp_fetch_item(plan, i, pass.item, pass.group);
  const block::KeySpan keys{pass.item.kv_begin, pass.item.kv_end};
  const int kv_head = pass.item.kv_head + head, count = pass.item.row_count, mine = rank<C>() * C.tile_rows;
  block::KeptHull hull = block::empty_hull(keys);
#pragma unroll 1
  for (int r = lane; r < C.item_rows(); r += 32) {
    block::PackedRow row;
    const bool there = r < count;
    const block::KeptTokens kept =
        block::resolve_row<V>(args, plan, pass.group, kv_head, keys, uint32_t(pass.item.row_begin + min_of(r, count - 1)), there, row);
    const block::KeptHull of_row = there ? block::hull_of(kept, keys) : block::empty_hull(keys);
    block::widen(hull, of_row);
    const int own = r - mine;
    if (own < 0 || own >= C.tile_rows) continue;  // for all lanes alike
    pass.row[own] = row;
    pass.kept[own] = kept;
    pass.lse_row[own] = row.token * args.params.lse_token + row.q_head * args.params.lse_head;
    pass.o_row[own] = row.token * args.params.o_token + row.q_head * args.params.o_head;
    const block::KeptHull of_warp = lane < 16 ? block::join_lanes(0xffffu, of_row) : block::join_lanes(0xffff0000u, of_row);
    if (lane % 16 == 0) pass.warp_hull[own / 16] = of_warp;
  }
  hull = block::join_lanes(0xffffffffu, hull);
  if (lane == 0) {
    pass.walk = block::TileWalk::of<C.tile_kv>(keys, hull);
    pass.hull = hull;
    pass.seen_end = seen_end_of(args.params.variant.range, plan, pass.group, pass.walk.any_begin, pass.walk.any_end);
    pass.kv_head = kv_head;
    pass.row_begin = mine;
    pass.row_count = clamp_to(count - mine, 0, C.tile_rows);
    pass.masked = block::needs_masks<V>(pass.group, args.params.variant.range);
    pass.last = head + 1 == pass.item.kv_head_count;
    pass.end = false;
    pass.scaling = block::Scaling::of<V, block::form_of<V>(false)>(args.params.variant, kv_head, 1.0f);
  }
  __syncwarp();
  if (lane < C.teams()) pass.reach[lane] = reach_of<C>(pass, lane);
  __syncwarp();
}

/// A tile of Q by rows; rows that are not there become zeros. Every lane arrives at `full` when its copies have landed.
template <AttendConfig C>
__device__ __forceinline__ void warp_copy_queries(const AttendArgs& args, const Pass<C>& pass, uint32_t q, uint32_t full) {
  using Tile = QTile<C>;
  const char* base = static_cast<const char*>(args.params.q);
#pragma unroll 4
  for (int at = int(threadIdx.x) & 31; at < C.tile_rows * Tile::kChunks; at += 32) {
    const int row = at / Tile::kChunks, chunk = at % Tile::kChunks;
    const block::PackedRow& r = pass.row[row];
    const int64_t offset = (r.token * args.params.q_token + r.q_head * args.params.q_head) * 2 + chunk * 16;
    ptx::cp_async_16(q + Tile::offset(row, chunk), base + (r.token >= 0 ? offset : 0), r.token >= 0 ? 16 : 0);
  }
  ptx::cp_async_arrive(full);
}

/// Fetches Q of a pass, when that of the one before has been taken: by boxes where a tile is whole tokens that follow each other, else row by row.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_load_queries(const BoxedAttendArgs& args, SharedMemory<C, V>& m, const Pass<C>& pass, const RingPlace<1>& to) {
  using Tile = QTile<C>;
  const int lane = int(threadIdx.x) & 31, tokens = args.boxes.query_tokens;
  const uint32_t q = ptx::shared_address(m.q), full = ptx::shared_address(&m.query.full[0]);
  m.query.wait_left(to);
  const block::PackedRow first = pass.row[0];
  const bool boxed = tokens > 0 && pass.group.row_list < 0 && pass.row_count == C.tile_rows && first.q_head % int(args.attend.group_size.divisor) == 0;
  if (!boxed) {
    warp_copy_queries<C>(args.attend, pass, q, full);
  } else if (lane > 0) {
    ptx::barrier_arrive(full);
  } else {
    ptx::barrier_arrive_expect(full, uint32_t(Tile::bytes()));
#pragma unroll 1
    for (int dim = 0; dim < C.head_dim_qk; dim += Tile::kBlock) {
      ptx::load_box<1>(q + uint32_t(dim / Tile::kBlock * C.tile_rows * Tile::kBlockBytes), &args.boxes.q, full, dim, first.q_head, first.token, 0, 0);
    }
  }
  __syncwarp();
}

/// All passes of a CTA, one after the other as there is room for them, and the end.
template <AttendConfig C, class V>
struct PassMaker {
  const AttendArgs& args;
  SharedMemory<C, V>& m;
  int32_t item = 0;  // of the CTA's list
  int head = 0;
  bool done = false;
  RingPlace<kPasses> to;

  __device__ __forceinline__ PassMaker(const AttendArgs& a, SharedMemory<C, V>& memory) : args(a), m(memory) {}

  __device__ __forceinline__ void warp_make_next() {
    if (done) return;
    m.passes.wait_left(to);
    const PlanView plan = view_plan(args.plan);
    const int list = int(blockIdx.x) / C.ctas;
    const int32_t i = plan.cta_indptr[list] + item;
    done = i >= plan.cta_indptr[list + 1];
    if (done && item == 0) block::warp_refuse_rows<C.o_dtype>(args, C.head_dim_vo, 0, 1);  // there are none at all
    if (!done) {
      warp_make_pass<C, V>(args, plan, i, head, m.pass[to.at]);
      if (++head >= plan.items[i].kv_head_count) head = 0, ++item;
    }
    if (block::lane_arrives(int(threadIdx.x) & 31)) {
      if (done) m.pass[to.at].end = true;
      ptx::barrier_arrive(ptx::shared_address(&m.passes.full[to.at]));
    }
    to.next();
  }
};

}  // namespace kvloom::sm90
