// What a warp finds out ahead of all others: the passes of a CTA's items, which rows they have and what those keep; and how Q is fetched.
#pragma once

#include "kvloom/device/block/item_list.cuh"
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

/// Fills `pass`, whose item and group are there, for one of the item's KV heads; ends with __syncwarp.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_make_pass(const AttendArgs& args, const PlanView& plan, int head, Pass<C>& pass) {
  const int lane = int(threadIdx.x) & 31;
  const block::KeySpan keys{pass.item.kv_begin, pass.item.kv_end};
  const int kv_head = pass.item.kv_head + head, count = pass.item.row_count, mine = rank<C>() * C.tile_rows;
  block::KeptHull hull = block::empty_hull(keys);
  if (pass.group.row_list >= 0) {  // all asked for before one is waited for
    uint32_t near = 0;
#pragma unroll
    for (int r = 0; r < C.item_rows(); r += 32) {
      const int32_t token = int32_t(args.group_size.divide(uint32_t(pass.item.row_begin + min_of(r + lane, count - 1))));
      near |= uint32_t(plan.row_entries[pass.group.row_list + token].token);
    }
    ptx::wait_for(near);
  }
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

/// True if a pass's rows are whole tokens that follow each other, as many as a tile has. By a whole warp.
template <AttendConfig C>
__device__ __forceinline__ bool warp_rows_are_tokens(const FastDivide& group_size, const Pass<C>& pass) {
  const block::PackedRow first = pass.row[0];
  if (pass.row_count != C.tile_rows || first.q_head % int(group_size.divisor) != 0) return false;
  if (pass.group.row_list < 0) return true;
  bool follow = true;
#pragma unroll 1
  for (int r = int(threadIdx.x) & 31; r < C.tile_rows; r += 32) follow &= pass.row[r].token == first.token + int32_t(group_size.divide(uint32_t(r)));
  return __all_sync(0xffffffffu, follow);
}

/// Fetches Q of a pass, when that of the one before has been taken: by boxes where that is possible, else row by row, which takes a warp microseconds.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_load_queries(const BoxedAttendArgs& args, SharedMemory<C, V>& m, const Pass<C>& pass, const RingPlace<1>& to) {
  using Tile = QTile<C>;
  const int lane = int(threadIdx.x) & 31, tokens = args.boxes.query_tokens;
  const uint32_t q = ptx::shared_address(m.q), full = ptx::shared_address(&m.query.full[0]);
  const bool boxed = tokens > 0 && warp_rows_are_tokens(args.attend.group_size, pass);
  const block::PackedRow first = pass.row[0];
  m.query.wait_left(to);
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

template <AttendConfig C, class V>
struct QueryLoader {
  const BoxedAttendArgs& args;
  SharedMemory<C, V>& m;
  RingPlace<1> to;

  __device__ __forceinline__ Ring<kPasses>& known() const { return m.passes; }
  __device__ __forceinline__ void warp_look_ahead(const Pass<C>&) const {}
  __device__ __forceinline__ void warp_fetch_pass(const Pass<C>& pass) {
    warp_load_queries<C, V>(args, m, pass, to);
    to.next();
  }
};

/// Passes, one after the other as there is room for them.
template <AttendConfig C, class V>
struct PassMaker {
  static constexpr int kCtas = C.ctas, kDims = C.head_dim_vo;
  static constexpr bool kStarts = false;
  static constexpr DType kOutput = C.o_dtype;
  const AttendArgs& args;
  SharedMemory<C, V>& m;
  block::MakerPlace<kPasses> at;

  __device__ __forceinline__ PassMaker(const AttendArgs& a, SharedMemory<C, V>& memory) : args(a), m(memory) {}

  /// The next pass of an item; true if that is its last.
  __device__ __forceinline__ bool warp_make(const block::ItemList::Found& found) {
    m.passes.wait_left(at.to);
    Pass<C>& pass = m.pass[at.to.at];
    warp_make_pass<C, V>(args, block::warp_fetch_found(args, found, pass.item, pass.group), at.head, pass);
    const bool last = pass.last;
    at.head = last ? 0 : at.head + 1;
    const int32_t touch = pass.item.touch_begin + (int(threadIdx.x) & 31);
    const bool touches = last && (int(threadIdx.x) & 31) < int(pass.item.touch_count);
    warp_give();
    if (touches) look_ahead(touch);
    __syncwarp();
    return last;
  }
  __device__ __forceinline__ void warp_end(bool more) {
    m.passes.wait_left(at.to);
    Pass<C>& pass = m.pass[at.to.at];
    if ((int(threadIdx.x) & 31) == 0) pass.end = true, pass.more = more;
    warp_give();
  }

 private:
  /// What the end of the item will look up is near then. A unit a lane.
  __device__ __forceinline__ void look_ahead(int32_t touch) const {
    const PlanView plan = view_plan(args.plan);
    const MergeUnit& unit = plan.units[plan.touches[touch]];
    ptx::prefetch_line(&plan.entries[unit.entry_begin]);
    ptx::prefetch_line(&plan.entries[unit.entry_begin + unit.entry_count - 1]);
  }
  __device__ __forceinline__ void warp_give() {
    if (block::lane_arrives(int(threadIdx.x) & 31)) ptx::barrier_arrive(ptx::shared_address(&m.passes.full[at.to.at]));
    at.to.next();
  }
};

}  // namespace kvloom::sm90
