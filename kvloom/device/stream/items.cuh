// What a warp finds out ahead of all others: the passes of a CTA's items, which rows they have and what those keep; and how Q is fetched.
#pragma once

#include "kvloom/device/block/item_list.cuh"
#include "kvloom/device/stream/queries.cuh"
#include "kvloom/device/stream/turned.cuh"

namespace kvloom::stream {

/// True if passes can be made before the kernels in front are done: of nothing that those may write.
template <class V>
__device__ __forceinline__ bool may_begin_early(const AttendArgs& args) {
  const ScaleParams& scale = args.params.variant.scale;
  return args.plan_settled && !block::has_slope<V>() && scale.k_per_head == nullptr;
}

/// Fills `pass`, whose item and group are there, for the item's KV heads from `first` on and some of its keys; ends with __syncwarp. `ends`: those are
/// the last. `keys_known` is called in between, behind __syncwarp: walk, num_pieces, heads and end are there, all that whoever fetches keys waits for.
template <AttendConfig C, class V, class F>
__device__ __forceinline__ void warp_make_pass(const AttendArgs& args, const PlanView& plan, int first, const block::KeySpan& keys, bool ends, Pass<C>& pass,
                                               F&& keys_known) {
  const int lane = int(threadIdx.x) & 31;
  const int kv_head = pass.item.kv_head + first, heads = min_of(C.heads, int(pass.item.kv_head_count) - first), count = pass.item.row_count;
  const bool there = lane < count;
  const uint32_t packed = uint32_t(pass.item.row_begin + min_of(lane, count - 1));
  block::KeptHull hull = block::empty_hull(keys);
  if constexpr (C.many) {
#pragma unroll 1
    for (int r = lane; r < round_up(count, 16); r += 32) {
      pass.kept[r] = block::resolve_row<V>(args, plan, pass.group, kv_head, keys, uint32_t(pass.item.row_begin + min_of(r, count - 1)), r < count, pass.row[r]);
      if (r < count) block::widen(hull, block::hull_of(pass.kept[r], keys));
    }
  } else if (lane < C.kRows) {
    block::PackedRow row;
    const block::KeptTokens kept = block::resolve_row<V>(args, plan, pass.group, kv_head, keys, packed, there, row);
    pass.row[lane] = row;
    pass.kept[lane] = kept;
    if (there) hull = block::hull_of(kept, keys);
  }
  hull = block::join_lanes(0xffffffffu, hull);
  if (lane == 0) {
    if constexpr (C.fixed_split) {
      // Turns of all warps, counted from token 0: a key's warp hangs neither on the other rows nor on the pass before.
      pass.walk = block::TileWalk::of<C.turn_keys()>(keys, hull);
      pass.walk.start += C.turn_keys() - C.step_keys();
    } else {
      pass.walk = block::TileWalk::of<C.step_keys()>(keys, hull);
    }
    pass.num_pieces = pass.walk.template count<C.step_keys()>() * C.step_pieces();
    pass.kv_head = kv_head;
    pass.heads = heads;
    pass.end = false;
  }
  __syncwarp();
  keys_known();
  if (lane < C.kRows) {
#pragma unroll 1
    for (int h = 1; h < heads; ++h) {
      block::PackedRow row;
      block::resolve_row<V>(args, plan, pass.group, kv_head + h, keys, packed, there, row);
      pass.row[h * C.kRows + lane] = row;
    }
  }
  if (lane == 0) {
    pass.hull = hull;
    pass.masked = block::needs_masks<V>(pass.group, args.params.variant.range);
    pass.last = ends && first + heads == pass.item.kv_head_count;
    pass.knows_entries = false;
  }
  if (lane < heads) {
    constexpr float kScoreFactor = C.fp8() ? sm80::power_of_two(sm80::score_log2<C.step()>()) : 1.0f;
    pass.scaling[lane] = block::Scaling::of<V, block::form_of<V>(C.fixed_split)>(args.params.variant, kv_head + lane, kScoreFactor);
  }
  __syncwarp();
}

/// Passes, one after the other as there is room for them.
template <AttendConfig C, class V>
struct PassMaker {
  static constexpr int kCtas = 1, kDims = C.head_dim_vo;
  static constexpr bool kStarts = true;
  static constexpr DType kOutput = C.o_dtype;
  const AttendArgs& args;
  SharedMemory<C, V>& m;
  block::MakerPlace<kPasses> at;
  block::Touches waiting;  // beside: to arrive at later
  int32_t split = 0;       // fixed_split: tokens of a chunk
  int32_t done_to = 0;     // of the item's keys for these heads, if there were any before

  __device__ __forceinline__ PassMaker(const AttendArgs& a, SharedMemory<C, V>& memory) : args(a), m(memory) {
    if constexpr (C.fixed_split) split = static_cast<const PlanHeader*>(a.plan)->split_tokens;
  }

  /// The next pass of an item; true if that is its last.
  __device__ __forceinline__ bool warp_make(const block::ItemList::Found& found) {
    m.passes.wait_left(at.to);
    Pass<C>& pass = m.pass[at.to.at];
    const PlanView plan = block::warp_fetch_found(args, found, pass.item, pass.group);
    bool ends = true;
    const block::KeySpan keys = next_keys(pass, ends);
    warp_make_pass<C, V>(args, plan, at.head, keys, ends, pass, [&] { warp_give(m.keys); });
    const bool last = pass.last;
    if (ends) at.head = last ? 0 : at.head + C.heads;
    warp_give(m.passes);
    warp_look_ahead(pass);
    at.to.next();
    return last;
  }
  __device__ __forceinline__ void warp_end(bool more) {
    m.passes.wait_left(at.to);
    Pass<C>& pass = m.pass[at.to.at];
    if ((int(threadIdx.x) & 31) == 0) {
      pass.end = true;
      if constexpr (C.beside) pass.more = more, pass.arrive = waiting;
    }
    waiting = {};
    __syncwarp();
    warp_give(m.keys), warp_give(m.passes), warp_give(m.units);
    at.to.next();
  }

 private:
  /// Behind __syncwarp: what `ring` stands for is there, of the pass that is made.
  __device__ __forceinline__ void warp_give(Ring<kPasses>& ring) const {
    if (block::lane_arrives(int(threadIdx.x) & 31)) ptx::barrier_arrive(ptx::shared_address(&ring.full[at.to.at]));
  }
  /// Units to arrive at behind an item. Where levels meet, a shared prefix is an item of many rows beside many items of few, and whoever arrives last
  /// merges: all units of a prefix are too much for one CTA while others still have items. So items of few rows arrive at the end of their run, or where
  /// others don't follow them; together, which costs them less, too.
  __device__ __forceinline__ block::Touches arrivals_behind(const WorkItem& item) {
    const block::Touches own{item.touch_begin, item.touch_count, true};
    if (own.count == 0 || view_plan(args.plan).header->num_levels < 2) return own;
    if (waiting.count > 0 && waiting.begin + waiting.count == own.begin && waiting.count + own.count <= 32) {
      waiting.count += own.count;
      return {};
    }
    const block::Touches now = waiting;
    waiting = {own.begin, own.count, false};
    return now;
  }
  /// Keys of the next pass over the item: all of them, or the next chunk. `ends`: there are no more.
  __device__ __forceinline__ block::KeySpan next_keys(Pass<C>& pass, bool& ends) {
    const WorkItem& i = pass.item;
    if constexpr (C.fixed_split) return next_chunk(pass, ends);
    else return {i.kv_begin, i.kv_end};
  }
  __device__ __forceinline__ block::KeySpan next_chunk(Pass<C>& pass, bool& ends) {
    const WorkItem& i = pass.item;
    const bool begins = done_to <= i.kv_begin;
    const int32_t begin = begins ? i.kv_begin : done_to, end = int32_t(min_of<int64_t>(i.kv_end, (int64_t(begin) / split + 1) * split));
    ends = end >= i.kv_end;
    done_to = ends ? 0 : end;
    if ((int(threadIdx.x) & 31) == 0) {
      const bool apart = i.partial_row >= 0 && i.chunked;
      pass.begins = apart || begins, pass.written = apart || ends;
      pass.new_rows = begins, pass.last_of_rows = ends;
      pass.partial_row = i.partial_row + (apart ? (begin / split - i.kv_begin / split) * i.row_count * i.kv_head_count : 0);
    }
    return {begin, end};
  }
  /// What the end of the pass will want to know: it does not hold up the beginning.
  __device__ __forceinline__ void warp_look_ahead(Pass<C>& pass) {
    constexpr int kUnitWords = sizeof(MergeUnit) / 4;
    const int lane = int(threadIdx.x) & 31;
    if constexpr (C.beside) {
      const block::Touches arrive = pass.last ? arrivals_behind(pass.item) : block::Touches{};
      if (lane == 0) pass.arrive = arrive;
    }
    if (pass.last && pass.item.touch_count > 0) {
      const PlanView plan = view_plan(args.plan);
      const int32_t index = plan.touches[pass.item.touch_begin];
      if (lane == kUnitWords) pass.unit.index = index;
      if (lane < kUnitWords) reinterpret_cast<uint32_t*>(&pass.unit.unit)[lane] = reinterpret_cast<const uint32_t*>(&plan.units[index])[lane];
      __syncwarp();
      MergeUnit& unit = pass.unit.unit;
      const int32_t begin = unit.entry_begin, count = unit.entry_count;
      const bool known = pass.item.touch_count == 1 && count <= C.entries_ahead;
      if (known && lane < count) pass.entry[lane] = plan.entries[begin + lane];
      if (C.beside && !known && lane < count) ptx::prefetch_line(&plan.entries[begin + lane]);
      __syncwarp();
      if (lane == 0) {
        pass.knows_entries = known;
        if (known) unit.entry_begin = 0;
      }
    }
    __syncwarp();
    warp_give(m.units);
  }
};

/// Q of a pass, when that of the one before has been taken; rows that are not there become zeros. False: it is there already.
template <AttendConfig C, class V>
__device__ __forceinline__ bool warp_load_queries(const AttendArgs& args, SharedMemory<C, V>& m, const Pass<C>& pass,
                                                  const RingPlace<1>& to) {
  if constexpr (C.fixed_split) {
    if (!pass.new_rows) return false;
  }
  using Memory = SharedMemory<C, V>;
  const int lane = int(threadIdx.x) & 31;
  const char* const base = static_cast<const char*>(args.params.q);
  const uint32_t q = ptx::shared_address(m.q), full = ptx::shared_address(&m.query.full[0]);
  m.query.wait_left(to);
#pragma unroll 4
  for (int i = lane; i < (C.many ? round_up(int(pass.item.row_count), 16) : pass.heads * C.kRows) * QRows<C>::kChunks; i += 32) {
    const int r = i / QRows<C>::kChunks, chunk = i % QRows<C>::kChunks;
    const block::PackedRow& row = pass.row[r];
    const int64_t offset = (row.token * args.params.q_token + row.q_head * args.params.q_head) * 2 + chunk * 16;
    ptx::cp_async_16(q + uint32_t(r / C.pass_rows() * Memory::kHeadQ) + QRows<C>::offset(r % C.pass_rows(), chunk),
                     base + (row.token >= 0 ? offset : 0), row.token >= 0 ? 16 : 0);
  }
  if constexpr (C.fp8() || block::has_query<V>()) {
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncwarp();
    if constexpr (C.fp8()) warp_convert_queries<C>(m, pass);
    else warp_turn_queries(args.params.variant, m, pass);
    ptx::barrier_arrive(full);
  } else {
    ptx::cp_async_arrive(full);
  }
  return true;
}

template <AttendConfig C, class V>
struct QueryLoader {
  const AttendArgs& args;
  SharedMemory<C, V>& m;
  RingPlace<1> to;

  __device__ __forceinline__ Ring<kPasses>& known() const { return m.passes; }
  __device__ __forceinline__ void warp_look_ahead(const Pass<C>&) const {}
  __device__ __forceinline__ void warp_fetch_pass(const Pass<C>& pass) {
    if (warp_load_queries<C, V>(args, m, pass, to)) to.next();
  }
};

}  // namespace kvloom::stream
