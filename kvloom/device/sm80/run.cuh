// A CTA's list of items, from the plan: fetched, cut into chunks where the plan says so, arrived at their merge units.
#pragma once

#include "kvloom/device/block/refused.cuh"
#include "kvloom/device/sm80/attend.cuh"

namespace kvloom::sm80 {

/// One item for one KV head. Under fixed_split chunk after chunk: folded, or each a partial of its own.
template <AttendConfig C, class V>
__device__ __forceinline__ void block_item_head(const AttendArgs& args, const PlanView& plan, int kv_head, SharedMemory<C, V>& m, block::Marks& marks) {
  const block::KeySpan all{m.item.kv_begin, m.item.kv_end};
  if constexpr (!C.fixed_split) {
    block_attend<C, V>(args, plan, kv_head, all, ChunkPlace{true, true, m.item.partial_row}, m, marks);
  } else {
    const int32_t split = plan.header->split_tokens;
    const bool apart = m.item.partial_row >= 0 && m.item.chunked;
    int32_t partial_row = m.item.partial_row;
    block::KeySpan chunk{all.begin, all.begin};
    bool first = true;
#pragma unroll 1
    do {
      chunk = {chunk.end, split > 0 ? int32_t(min_of<int64_t>(all.end, (int64_t(chunk.end) / split + 1) * split)) : all.end};
      if (all.end <= all.begin) chunk = all;
      block_attend<C, V>(args, plan, kv_head, chunk, ChunkPlace{apart || first, apart || chunk.end >= all.end, partial_row}, m, marks);
      first = false;
      if (apart) partial_row += m.item.row_count * m.item.kv_head_count;
    } while (chunk.end < all.end);
  }
}

/// One item for all of its KV heads. All threads have passed a barrier since `m.item` was written.
template <AttendConfig C, class V>
__device__ __forceinline__ void block_item(const AttendArgs& args, const PlanView& plan, SharedMemory<C, V>& m, block::Marks& marks) {
#pragma unroll 1
  for (int h = 0; h < m.item.kv_head_count; ++h) block_item_head<C, V>(args, plan, m.item.kv_head + h, m, marks);
  marks.stored();
  if (m.item.partial_row < 0) return;
  if constexpr (block::kMarks) {
    block::team_arrive<V, C.o_dtype, block::MergeRows<block::merge_shape(C.fixed_split)>, block::WholeCta>(args, plan, block::Touches::of(m.item), C.head_dim_vo, 1, &m.complete, nullptr, marks);
  } else {
    block::block_arrive<V, C.o_dtype, C.fixed_split>(args, plan, m.item, C.head_dim_vo, &m.complete);
  }
}

/// Item `i` and its group into shared memory, by all threads: no one waits for the other's words.
template <AttendConfig C, class V>
__device__ __forceinline__ void block_fetch_item(const PlanView& plan, int32_t i, SharedMemory<C, V>& m) {
  __syncthreads();
  constexpr int kItemWords = sizeof(WorkItem) / 4, kGroupWords = sizeof(RowGroup) / 4;
  const int word = int(threadIdx.x);
  if (word < kItemWords) {
    reinterpret_cast<uint32_t*>(&m.item)[word] = reinterpret_cast<const uint32_t*>(&plan.items[i])[word];
  } else if (word >= 32 && word < 32 + kGroupWords) {
    reinterpret_cast<uint32_t*>(&m.group)[word - 32] = reinterpret_cast<const uint32_t*>(&plan.groups[plan.items[i].group])[word - 32];
  }
  __syncthreads();
}

template <AttendConfig C, class V>
__device__ __forceinline__ void block_prepare(const AttendArgs& args, SharedMemory<C, V>& m) {
  block_init_ring<C, V>(m);
  if constexpr (block::has_key<V>() || block::has_query<V>()) block::block_fill_turns(args.params.variant.rope, C.head_dim_qk, m.turns);
}

/// All items of this CTA, of one class.
template <AttendConfig C, class V>
__device__ __forceinline__ void block_run(const AttendArgs& args, char* memory) {
  SharedMemory<C, V>& m = *reinterpret_cast<SharedMemory<C, V>*>(memory);
  block::Marks marks(args, threadIdx.x == 0);
  block_prepare<C, V>(args, m);
  ptx::grid_dependency_launch();  // a grid behind this one may be put in place as CTAs leave; it waits for all of them to end
  ptx::grid_dependency_wait();
  const PlanView plan = view_plan(args.plan);
  int32_t i = plan.cta_indptr[blockIdx.x];
  const int32_t end = plan.cta_indptr[blockIdx.x + 1];
  if (i == end) {
    block::cta_without_items<C.o_dtype>(args, C.head_dim_vo);
    return marks.leave();
  }
  marks.first(plan);
#pragma unroll 1
  for (; i < end; ++i) {
    block_fetch_item<C, V>(plan, i, m);
    block_item<C, V>(args, plan, m, marks);
    marks.done();
  }
  marks.leave();
}

/// All items of this CTA, of either class: one code path each, in the same shared memory.
template <AttendConfig M, AttendConfig C, class V>
__device__ __forceinline__ void block_run_mixed(const AttendArgs& args, char* memory) {
  SharedMemory<M, V>& small = *reinterpret_cast<SharedMemory<M, V>*>(memory);
  SharedMemory<C, V>& large = *reinterpret_cast<SharedMemory<C, V>*>(memory);
  block::Marks marks(args, threadIdx.x == 0);
  ptx::grid_dependency_launch();  // a grid behind this one may be put in place as CTAs leave; it waits for all of them to end
  ptx::grid_dependency_wait();
  const PlanView plan = view_plan(args.plan);
  int32_t i = plan.cta_indptr[blockIdx.x];
  const int32_t end = plan.cta_indptr[blockIdx.x + 1];
  if (i == end) {
    block::cta_without_items<C.o_dtype>(args, C.head_dim_vo);
    return marks.leave();
  }
  marks.first(plan);
  int before = -1;
#pragma unroll 1
  for (; i < end; ++i) {
    block_fetch_item<M, V>(plan, i, small);  // lies where `large` has it, too
    const int now = small.item.kernel_class;
    if (now != before) {
      if (before == 1) block_end_ring<C, V>(large);
      if (before == 0) block_end_ring<M, V>(small);
      if (before >= 0) __syncthreads();
      if (now == 0) block_prepare<M, V>(args, small);
      else block_prepare<C, V>(args, large);
      __syncthreads();
      before = now;
    }
    if (now == 0) block_item<M, V>(args, plan, small, marks);
    else block_item<C, V>(args, plan, large, marks);
    marks.done();
  }
  marks.leave();
}

}  // namespace kvloom::sm80
