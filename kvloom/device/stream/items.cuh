// What a warp finds out ahead of all others: the passes of a CTA's items, which rows they have and what those keep; and how Q is fetched.
#pragma once

#include "kvloom/device/block/refused.cuh"
#include "kvloom/device/stream/queries.cuh"
#include "kvloom/device/stream/turned.cuh"

namespace kvloom::stream {

/// The lane's word of what this CTA begins with.
__device__ __forceinline__ uint32_t start_word(const AttendArgs& args) {
  return reinterpret_cast<const uint32_t*>(args.starts + blockIdx.x)[int(threadIdx.x) & 31];
}
/// What this CTA begins with, `word` of each lane, to `item` and `group`. Returns how many items there are, or -1: this is not known, and neither are
/// those. By a whole warp; ends with __syncwarp.
__device__ __forceinline__ int32_t warp_take_start(uint32_t word, WorkItem& item, RowGroup& group) {
  constexpr int kItemWords = sizeof(WorkItem) / 4, kGroupWords = sizeof(RowGroup) / 4;
  const int lane = int(threadIdx.x) & 31;
  if (lane < kItemWords) reinterpret_cast<uint32_t*>(&item)[lane] = word;
  else if (lane < kItemWords + kGroupWords) reinterpret_cast<uint32_t*>(&group)[lane - kItemWords] = word;
  const int32_t items = int32_t(__shfl_sync(0xffffffffu, word, kItemWords + kGroupWords));
  __syncwarp();
  return items;
}

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

/// All passes of a CTA, one after the other as there is room for them, and the end.
template <AttendConfig C, class V>
struct PassMaker {
  const AttendArgs& args;
  SharedMemory<C, V>& m;
  int32_t item = 0;    // of the CTA's list
  int32_t items = -1;  // that there are; -1: not known
  int head = 0;
  bool done = false;
  RingPlace<kPasses> to;
  int32_t split = 0;    // fixed_split: tokens of a chunk
  int32_t done_to = 0;  // of the item's keys for these heads, if there were any before
  uint32_t start;       // start_word()

  __device__ __forceinline__ PassMaker(const AttendArgs& a, SharedMemory<C, V>& memory, uint32_t start_word) : args(a), m(memory), start(start_word) {
    if constexpr (C.fixed_split) split = static_cast<const PlanHeader*>(a.plan)->split_tokens;
  }

  __device__ __forceinline__ void warp_make_next() {
    if (done) return;
    m.passes.wait_left(to);
    Pass<C>& pass = m.pass[to.at];
    PlanView plan;
    find_item(pass, plan);
    if (done && item == 0) block::warp_refuse_rows<C.o_dtype>(args, C.head_dim_vo, 0, 1);
    if (!done) {
      bool ends = true;
      const block::KeySpan keys = next_keys(pass, ends);
      warp_make_pass<C, V>(args, plan, head, keys, ends, pass, [&] { arrive(m.keys); });
      if (ends) head += C.heads;
      if (head >= pass.item.kv_head_count) head = 0, ++item;
    }
    if (done) {
      if ((int(threadIdx.x) & 31) == 0) pass.end = true;
      __syncwarp();
      arrive(m.keys);
    }
    arrive(m.passes);
    if (!done) warp_look_ahead(pass);
    to.next();
  }

 private:
  /// Behind __syncwarp: what `ring` stands for is there, of the pass that is made.
  __device__ __forceinline__ void arrive(Ring<kPasses>& ring) const {
    if (block::lane_arrives(int(threadIdx.x) & 31)) ptx::barrier_arrive(ptx::shared_address(&ring.full[to.at]));
  }
  /// The item of the next pass and its group, or that there are no more. `plan`: where its rows may be looked up. Every look at the plan is a wait
  /// for memory, one behind the other: with nothing to hide them, before the CTA's first item, one look is all there is.
  __device__ __forceinline__ void find_item(Pass<C>& pass, PlanView& plan) {
    if (item == 0) items = warp_take_start(start, pass.item, pass.group);
    done = items >= 0 && item >= items;
    if (done || (item == 0 && items > 0 && pass.group.row_list < 0)) return;
    plan = view_plan(args.plan);
    if (item == 0 && items > 0) return;
    const int32_t i = plan.cta_indptr[blockIdx.x] + item;
    done = i >= plan.cta_indptr[blockIdx.x + 1];
    if (!done) block::warp_fetch_item(plan, i, pass.item, pass.group);
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
    if (pass.last && pass.item.touch_count > 0) {
      const PlanView plan = view_plan(args.plan);
      const int32_t index = plan.touches[pass.item.touch_begin];
      if (lane == kUnitWords) pass.unit.index = index;
      if (lane < kUnitWords) reinterpret_cast<uint32_t*>(&pass.unit.unit)[lane] = reinterpret_cast<const uint32_t*>(&plan.units[index])[lane];
      __syncwarp();
      MergeUnit& unit = pass.unit.unit;
      const int32_t begin = unit.entry_begin, count = unit.entry_count;
      const bool known = pass.item.touch_count == 1 && count <= kEntriesAhead;
      if (known && lane < count) pass.entry[lane] = plan.entries[begin + lane];
      __syncwarp();
      if (lane == 0) {
        pass.knows_entries = known;
        if (known) unit.entry_begin = 0;
      }
    }
    __syncwarp();
    arrive(m.units);
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

}  // namespace kvloom::stream
