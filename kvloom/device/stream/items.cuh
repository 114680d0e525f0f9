// What a warp finds out ahead of all others: the passes of a CTA's items, which rows they have and what those keep; and how Q is fetched.
#pragma once

#include "kvloom/device/block/refused.cuh"
#include "kvloom/device/sm80/transform.cuh"
#include "kvloom/device/stream/queries.cuh"

namespace kvloom::stream {

/// Fills `pass` for KV heads of item `i` from its head `first` on; ends with __syncwarp.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_make_pass(const AttendArgs& args, const PlanView& plan, int32_t i, int first, Pass<C>& pass) {
  const int lane = int(threadIdx.x) & 31;
  block::warp_fetch_item(plan, i, pass.item, pass.group);
  const block::KeySpan keys{pass.item.kv_begin, pass.item.kv_end};
  const int kv_head = pass.item.kv_head + first, heads = min_of(C.heads, int(pass.item.kv_head_count) - first), count = pass.item.row_count;
  block::KeptHull hull = block::empty_hull(keys);
  if (lane < C.kRows) {
    const bool there = lane < count;
    const uint32_t packed = uint32_t(pass.item.row_begin + min_of(lane, count - 1));
#pragma unroll 1
    for (int h = 0; h < heads; ++h) {
      block::PackedRow row;
      const block::KeptTokens kept = block::resolve_row<V>(args, plan, pass.group, kv_head + h, keys, packed, there, row);
      pass.row[h * C.kRows + lane] = row;
      if (h > 0) continue;
      pass.kept[lane] = kept;
      if (there) hull = block::hull_of(kept, keys);
    }
  }
  __syncwarp();
  hull = block::join_lanes(0xffffffffu, hull);
  if (lane == 0) {
    pass.walk = block::TileWalk::of<C.step_keys()>(keys, hull);
    pass.num_pieces = pass.walk.template count<C.step_keys()>() * C.step_pieces();
    pass.hull = hull;
    pass.kv_head = kv_head;
    pass.heads = heads;
    pass.masked = block::needs_masks<V>(pass.group, args.params.variant.range);
    pass.last = first + heads == pass.item.kv_head_count;
    pass.end = false;
  }
  if (lane < heads) {
    constexpr float kScoreFactor = C.fp8() ? sm80::power_of_two(sm80::score_log2<C.step()>()) : 1.0f;
    pass.scaling[lane] = block::Scaling::of<V, block::form_of<V>(false)>(args.params.variant, kv_head + lane, kScoreFactor);
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
    const int32_t i = plan.cta_indptr[blockIdx.x] + item;
    done = i >= plan.cta_indptr[blockIdx.x + 1];
    if (done && item == 0) block::warp_refuse_rows<C.o_dtype>(args, C.head_dim_vo, 0, 1);
    if (!done) {
      warp_make_pass<C, V>(args, plan, i, head, m.pass[to.at]);
      head += C.heads;
      if (head >= m.pass[to.at].item.kv_head_count) head = 0, ++item;
    }
    if ((int(threadIdx.x) & 31) == 0) {
      if (done) m.pass[to.at].end = true;
      ptx::barrier_arrive(ptx::shared_address(&m.passes.full[to.at]));
    }
    if (!done) warp_look_ahead(m.pass[to.at]);
    to.next();
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
    }
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(ptx::shared_address(&m.units.full[to.at]));
  }
};

/// True if passes can be made before the kernels in front are done: of nothing that those may write.
template <class V>
__device__ __forceinline__ bool may_begin_early(const AttendArgs& args) {
  const ScaleParams& scale = args.params.variant.scale;
  return args.plan_settled && !block::has_slope<V>() && scale.k_per_head == nullptr;
}

/// Q of a pass, when that of the one before has been taken; rows that are not there become zeros.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_load_queries(const AttendArgs& args, SharedMemory<C, V>& m, const Pass<C>& pass,
                                                  const RingPlace<1>& to) {
  using Memory = SharedMemory<C, V>;
  const int lane = int(threadIdx.x) & 31;
  const char* const base = static_cast<const char*>(args.params.q);
  const uint32_t q = ptx::shared_address(m.q), full = ptx::shared_address(&m.query.full[0]);
  m.query.wait_left(to);
#pragma unroll 4
  for (int i = lane; i < pass.heads * C.kRows * QRows<C>::kChunks; i += 32) {
    const int r = i / QRows<C>::kChunks, chunk = i % QRows<C>::kChunks;
    const block::PackedRow& row = pass.row[r];
    const int64_t offset = (row.token * args.params.q_token + row.q_head * args.params.q_head) * 2 + chunk * 16;
    ptx::cp_async_16(q + uint32_t(r / C.kRows * Memory::kHeadQ) + QRows<C>::offset(r % C.kRows, chunk),
                     base + (row.token >= 0 ? offset : 0), row.token >= 0 ? 16 : 0);
  }
  if constexpr (C.fp8()) {
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncwarp();
    warp_convert_queries<C>(m, pass);
    ptx::barrier_arrive(full);
  } else {
    ptx::cp_async_arrive(full);
  }
}

}  // namespace kvloom::stream
