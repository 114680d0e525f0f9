// attend, family sm80: mma.sync and cp.async, sm_80 and up. A persistent CTA takes its items one after another: load the rows, then a
// tile of keys at a time: scores, variant and mask, softmax, accumulate; then finish. K and V are double-buffered: while a tile is worked
// on, the next one is on its way, and where the one after that lies is being looked up.
#pragma once

#include "kvloom/device/block/finish.cuh"
#include "kvloom/device/block/rows.cuh"
#include "kvloom/device/block/scores.cuh"
#include "kvloom/device/block/softmax.cuh"
#include "kvloom/device/sm80/load.cuh"
#include "kvloom/device/sm80/mainloop.cuh"
#include "kvloom/device/sm80/store.cuh"

namespace kvloom::sm80 {

/// Shared memory of a CTA.
template <AttendConfig C>
struct SharedMemory {
  static constexpr int kTileK = tile::SwizzledRows<C.head_dim_qk>::bytes(C.tile_kv);
  static constexpr int kTileV = tile::SwizzledRows<C.head_dim_vo>::bytes(C.tile_kv);
  alignas(128) char q[tile::SwizzledRows<C.head_dim_qk>::bytes(C.tile_rows)];
  alignas(128) char k[2][kTileK];
  alignas(128) char v[2][kTileV];
  KeyRow where[2][C.tile_kv];
  int32_t pos[2][C.listed_positions ? C.tile_kv : 1];
  block::PackedRow row[C.tile_rows];
  block::KeptTokens kept[C.tile_rows];
  int32_t all_kept[2];
  uint32_t flag;
  WorkItem item;    // of the moment: in shared memory, since registers are what the mainloop is short of
  RowGroup group;

  __device__ __forceinline__ block::Rows rows() { return {row, kept, all_kept}; }
};

/// One item for one KV head: the state of its rows over its keys, stored.
template <AttendConfig C, class V>
__device__ __forceinline__ void block_attend(const AttendArgs& args, const PlanView& plan, int kv_head, SharedMemory<C>& m) {
  constexpr bool kSum = block::has_weight<V>();
  const WorkItem& item = m.item;
  const RowGroup& group = m.group;
  const int warp = int(threadIdx.x) >> 5;
  const int row0 = (warp % C.warps_rows) * 16 * C.row_tiles();        // of this warp's rows in the tile
  const int key0 = (warp / C.warps_rows) * 8 * C.key_tiles();         // of this warp's keys in a tile
  const int32_t first = item.kv_begin / C.tile_kv * C.tile_kv;        // tiles stand at multiples of tile_kv from list token 0
  const int tiles = item.kv_end > item.kv_begin ? ceil_div(item.kv_end - first, C.tile_kv) : 0;
  const float scale = block::has_logit<V>() ? 1.0f : args.params.variant.sm_scale * kLog2e;

  float o[C.row_tiles()][C.head_dim_vo / 8][4] = {};
  block::OnlineSoftmax<C.row_tiles()> softmax;
  softmax.clear();

  __syncthreads();  // the previous item is done with shared memory
  block::block_resolve_rows<C.tile_rows, C.threads()>(args, plan, item, group, kv_head, m.rows());
  const int lookup = int(threadIdx.x);  // the key of a tile whose place this thread looks up
  const bool looks_up = lookup < C.tile_kv;
  static_assert(C.tile_kv <= C.threads());
  if (looks_up) {
    m.where[0][lookup] = key_row<C>(args, group, item, kv_head, first + lookup);
    m.where[1][lookup] = key_row<C>(args, group, item, kv_head, first + C.tile_kv + lookup);
  }
  __syncthreads();
  block_load_queries<C>(args, m.row, m.q);
  block_load_keys<C, C.head_dim_qk, false>(args, m.where[0], m.k[0]);
  ptx::cp_async_commit();
  block_load_keys<C, C.head_dim_vo, true>(args, m.where[0], m.v[0]);
  ptx::cp_async_commit();

  for (int t = 0; t < tiles; ++t) {
    const int32_t token0 = first + t * C.tile_kv;
    const int now = t & 1, next = now ^ 1;
    ptx::cp_async_wait<1>();
    __syncthreads();  // K of this tile is there; everybody is done with the buffers of the tile before
    KeyRow place;
    if (looks_up) place = key_row<C>(args, group, item, kv_head, token0 + 2 * C.tile_kv + lookup);  // two tiles ahead
    block_load_keys<C, C.head_dim_qk, false>(args, m.where[next], m.k[next]);
    ptx::cp_async_commit();

    float s[C.row_tiles()][C.key_tiles()][4];
    warp_scores<C>(s, m.q, row0, m.k[now], key0);
    const bool cut = token0 < m.all_kept[0] || token0 + C.tile_kv > m.all_kept[1];
    const block::WarpKeys keys{&group, token0 + key0, kv_head, item.kv_begin, item.kv_end, m.pos[now] + key0};
    block::warp_apply_variant<V, C.listed_positions>(s, args.params.variant, m.rows(), row0, keys, cut);
    softmax.step(s, o, scale);
    if (looks_up) m.where[now][lookup] = place;

    ptx::cp_async_wait<1>();
    __syncthreads();  // V of this tile is there
    block_load_keys<C, C.head_dim_vo, true>(args, m.where[next], m.v[next]);
    ptx::cp_async_commit();
    warp_accumulate<C>(o, s, m.v[now], key0);
  }
  ptx::cp_async_wait<0>();
  static_assert(!kSum, "the sum reduction needs its own step");
  block_store<C>(args, item, kv_head, o, softmax, scale, row0, m);
}

/// One item for all of its KV heads. All threads have passed a barrier since `m.item` was written.
template <AttendConfig C, class V>
__device__ __forceinline__ void block_item(const AttendArgs& args, const PlanView& plan, SharedMemory<C>& m) {
  for (int h = 0; h < m.item.kv_head_count; ++h) block_attend<C, V>(args, plan, m.item.kv_head + h, m);
  if (m.item.partial_row >= 0) block::block_arrive<C.o_dtype>(args, plan, m.item, C.head_dim_vo, block::has_weight<V>(), &m.flag);
}

/// Item `i` and its group into shared memory.
template <AttendConfig C>
__device__ __forceinline__ void block_fetch_item(const PlanView& plan, int32_t i, SharedMemory<C>& m) {
  __syncthreads();
  if (threadIdx.x == 0) {
    m.item = plan.items[i];
    m.group = plan.groups[m.item.group];
  }
  __syncthreads();
}

template <AttendConfig C>
constexpr int shared_bytes() { return int(sizeof(SharedMemory<C>)); }

/// All items of this CTA, of one class.
template <AttendConfig C, class V>
__device__ __forceinline__ void block_run(const AttendArgs& args, char* memory) {
  SharedMemory<C>& m = *reinterpret_cast<SharedMemory<C>*>(memory);
  ptx::grid_dependency_wait();
  const PlanView plan = view_plan(args.plan);
  const int32_t end = plan.cta_indptr[blockIdx.x + 1];
  for (int32_t i = plan.cta_indptr[blockIdx.x]; i < end; ++i) {
    block_fetch_item<C>(plan, i, m);
    block_item<C, V>(args, plan, m);
  }
}

/// All items of this CTA, of either class: one code path each, in the same shared memory.
template <AttendConfig M, AttendConfig C, class V>
__device__ __forceinline__ void block_run_mixed(const AttendArgs& args, char* memory) {
  SharedMemory<M>& small = *reinterpret_cast<SharedMemory<M>*>(memory);
  SharedMemory<C>& large = *reinterpret_cast<SharedMemory<C>*>(memory);
  ptx::grid_dependency_wait();
  const PlanView plan = view_plan(args.plan);
  const int32_t end = plan.cta_indptr[blockIdx.x + 1];
  for (int32_t i = plan.cta_indptr[blockIdx.x]; i < end; ++i) {
    if (plan.items[i].kernel_class == 0) {
      block_fetch_item<M>(plan, i, small);
      block_item<M, V>(args, plan, small);
    } else {
      block_fetch_item<C>(plan, i, large);
      block_item<C, V>(args, plan, large);
    }
  }
}

}  // namespace kvloom::sm80
