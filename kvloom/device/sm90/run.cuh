// A CTA's warps and what each of them does, from its list of items to the end.
#pragma once

#include "kvloom/device/ptx/sync.cuh"
#include "kvloom/device/sm90/gather.cuh"
#include "kvloom/device/sm90/store.cuh"

namespace kvloom::sm90 {

/// All warps that compute arrive at an item's merge units.
template <AttendConfig C, class V>
__device__ __forceinline__ void teams_arrive(const AttendArgs& args, const WorkItem& item, uint32_t* complete, const block::Marks& marks) {
  using Merge = block::MergeRows<block::MergeShape{false, C.merge_partials, C.merge_rows, C.merge_together}>;
  block::team_arrive<V, C.o_dtype, Merge, ComputeWarps<C>>(args, view_plan(args.plan), block::Touches::of(item), C.head_dim_vo, C.ctas, complete, nullptr, marks);
}
template <AttendConfig C, class V>
__device__ __noinline__ void teams_arrive_apart(const AttendArgs& args, const WorkItem& item, uint32_t* complete, block::Marks marks) {
  teams_arrive<C, V>(args, item, complete, marks);
}

/// A warpgroup that computes: pass after pass to the next end. `on_stored`: called where a pass's rows are stored, with the place of the next
/// pass, before anything is merged. (Ending a pass beside the beginning of the next one is slower: docs/lab-notes.md.)
template <AttendConfig C, class V, class OnStored>
__device__ __forceinline__ void team_run(const BoxedAttendArgs& args, SharedMemory<C, V>& m, TeamPlaces<C>& places, bool gathered, block::Marks& marks, OnStored&& on_stored) {
  Team<C, V> team(args, m, places, gathered);
  RingPlace<kPasses>& at = places.pass;
  team.take_queries(at);
#pragma unroll 1
  while (!m.pass[at.at].end) {
    Pass<C>& pass = m.pass[at.at];
    RingPlace<kPasses> next = at;
    next.next();
    team.take(pass);
    team_attend(team, pass, next, marks);
    on_stored(next);
    if (pass.last && pass.item.partial_row >= 0) {
      if constexpr (C.merge_apart) teams_arrive_apart<C, V>(args.attend, pass.item, &m.complete, marks);
      else teams_arrive<C, V>(args.attend, pass.item, &m.complete, marks);
    }
    if (pass.last) marks.done();
    m.passes.warp_leave(at);
    at = next;
    if constexpr (!C.q_in_registers) team.take_queries(at);
  }
  ptx::store_wait();  // boxes on their way out are still read
}

/// Makes the barriers; the caller puts one of all threads behind it.
template <AttendConfig C, class V>
__device__ __forceinline__ void block_prepare(SharedMemory<C, V>& m, bool gathered) {
  constexpr int kComputeWarps = 4 * C.teams();
  const uint32_t fillers = gathered ? kRowWarps * 32 : kLoaderWarps;
  if (threadIdx.x == 0) {
    m.query.init(32, kComputeWarps);
    m.passes.init(block::kArrivingLanes, kComputeWarps + (gathered ? kRowWarps : kLoaderWarps + 1));  // ... and the warp that fetches Q
    m.keys.init(fillers, kComputeWarps * C.ctas);
    m.values.init(fillers, kComputeWarps * C.ctas);
    ptx::barrier_init_fence();
  }
  for (int i = int(threadIdx.x); i < 3 * C.tile_kv / 32; i += C.threads()) m.live[0][i] = 0;
}

template <AttendConfig C, class V>
__device__ __forceinline__ void block_init(SharedMemory<C, V>& m, bool gathered) {
  block_prepare<C, V>(m, gathered);
  if constexpr (C.ctas > 1) ptx::cluster_sync();
  else __syncthreads();
}

template <AttendConfig C, class V>
__device__ __forceinline__ void block_run(const BoxedAttendArgs& args, char* memory) {
  static_assert(C.loader_registers() + C.teams() * C.compute_registers() <= (1 + C.teams()) * C.launch_registers(), "registers nobody gives are waited for");
  SharedMemory<C, V>& m = *reinterpret_cast<SharedMemory<C, V>*>(memory);
  const bool gathered = C.gathers && args.boxes.rows == 0;
  block::Marks marks(args.attend, threadIdx.x == 128, C.ctas);  // the first warp that computes
  block_init(m, gathered);
  ptx::grid_dependency_launch();  // a grid behind this one may be put in place as CTAs leave; it waits for all of them to end
  ptx::grid_dependency_wait();
  const int warp = ptx::uniform(int(threadIdx.x) >> 5);
  if (warp >= 4) {
    ptx::warpgroup_take_registers<C.compute_registers()>();
    marks.first(view_plan(args.attend.plan));
    TeamPlaces<C> places;
    team_run<C, V>(args, m, places, gathered, marks, [](const RingPlace<kPasses>&) {});
  } else {
    ptx::warpgroup_give_registers<C.loader_registers()>();
    if constexpr (C.gathers) {
      if (gathered) RowLoader<C, V>{args, m}.run();
      else warp_load_boxes<C, V>(args, m, warp);
    } else {
      warp_load_boxes<C, V>(args, m, warp);
    }
    __syncwarp();
  }
  if constexpr (C.ctas > 1) ptx::cluster_sync();  // boxes that this CTA fetched, and arrivals, may still be on their way to the other
  marks.leave();
}

}  // namespace kvloom::sm90
