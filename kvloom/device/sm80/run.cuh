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

/// The same, not inlined: two classes in one kernel would share out registers among each other's loops.
template <AttendConfig C, class V>
__device__ __noinline__ void block_item_apart(const AttendArgs& args, const PlanView& plan, SharedMemory<C, V>& m, block::Marks& marks) {
  block_item<C, V>(args, plan, m, marks);
}

/// A CTA's first item `i` and its group into shared memory, and the item behind it if there is one. By all threads; ends with a barrier.
__device__ __forceinline__ void block_fetch_first(const PlanView& plan, int32_t i, int32_t end, ItemWords& m) {
  constexpr int kItemWords = sizeof(WorkItem) / 4, kGroupWords = sizeof(RowGroup) / 4;
  const int word = int(threadIdx.x);
  if (word < kItemWords) {
    reinterpret_cast<uint32_t*>(&m.item)[word] = reinterpret_cast<const uint32_t*>(&plan.items[i])[word];
    if (i + 1 < end) reinterpret_cast<uint32_t*>(&m.next)[word] = reinterpret_cast<const uint32_t*>(&plan.items[i + 1])[word];
  } else if (word >= 32 && word < 32 + kGroupWords) {
    reinterpret_cast<uint32_t*>(&m.group)[word - 32] = reinterpret_cast<const uint32_t*>(&plan.groups[plan.items[i].group])[word - 32];
  }
  __syncthreads();
}

/// While item `i` is worked on: the group of the next one and the words of the one behind that, copied by threads that wait for their part of Q, too.
__device__ __forceinline__ void block_ask_ahead(const PlanView& plan, int32_t i, int32_t end, ItemWords& m) {
  constexpr int kItemChunks = sizeof(WorkItem) / 16, kGroupChunks = sizeof(RowGroup) / 16;
  const int at = int(threadIdx.x);
  if (at < kGroupChunks) {
    if (i + 1 < end) ptx::cp_async_16(ptx::shared_address(&m.next_group) + at * 16, reinterpret_cast<const char*>(&plan.groups[m.next.group]) + at * 16, 16);
  } else if (at >= 32 && at < 32 + kItemChunks) {
    if (i + 2 < end) ptx::cp_async_16(ptx::shared_address(&m.after_next) + (at - 32) * 16, reinterpret_cast<const char*>(&plan.items[i + 2]) + (at - 32) * 16, 16);
  }
}

/// On to the next item: all that is asked is there since the one before had its Q. By all threads; begins and ends with a barrier.
__device__ __forceinline__ void block_take_next(ItemWords& m) {
  constexpr int kItemWords = sizeof(WorkItem) / 4, kGroupWords = sizeof(RowGroup) / 4;
  __syncthreads();
  const int word = int(threadIdx.x);
  if (word < kItemWords) {
    const uint32_t next = reinterpret_cast<const uint32_t*>(&m.next)[word];
    reinterpret_cast<uint32_t*>(&m.next)[word] = reinterpret_cast<const uint32_t*>(&m.after_next)[word];
    reinterpret_cast<uint32_t*>(&m.item)[word] = next;
  } else if (word >= 32 && word < 32 + kGroupWords) {
    reinterpret_cast<uint32_t*>(&m.group)[word - 32] = reinterpret_cast<const uint32_t*>(&m.next_group)[word - 32];
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
  block_fetch_first(plan, i, end, m);
#pragma unroll 1
  while (true) {
    block_ask_ahead(plan, i, end, m);
    block_item<C, V>(args, plan, m, marks);
    marks.done();
    if (++i == end) break;
    block_take_next(m);
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
  block_fetch_first(plan, i, end, small);  // lies where `large` has it, too
  int before = -1;
#pragma unroll 1
  while (true) {
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
    block_ask_ahead(plan, i, end, small);
    if (now == 0) block_item_apart<M, V>(args, plan, small, marks);
    else block_item<C, V>(args, plan, large, marks);
    marks.done();
    if (++i == end) break;
    block_take_next(small);
  }
  marks.leave();
}

}  // namespace kvloom::sm80
