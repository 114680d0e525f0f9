// A CTA's warps and what each of them does, from its list of items to the end.
#pragma once

#include "kvloom/device/ptx/sync.cuh"
#include "kvloom/device/stream/gather.cuh"
#include "kvloom/device/stream/many.cuh"

namespace kvloom::stream {

/// The warps that compute: pass after pass.
template <AttendConfig C, class V>
__device__ __forceinline__ void team_run(const AttendArgs& args, SharedMemory<C, V>& m, block::Marks& marks) {
  Warp<C, V> warp(args, m);
  marks.first(view_plan(args.plan));
#pragma unroll 1
  for (RingPlace<kPasses> at;; at.next()) {
    m.passes.wait_full(at);
    Pass<C>& pass = m.pass[at.at];
    if (pass.end) return;
    warp.attend(pass, marks);
    team_store(warp, pass, m);
    team_end_pass<C, V>(args, m, pass, at, marks);
  }
}

template <AttendConfig C, class V>
__device__ __forceinline__ void block_init(SharedMemory<C, V>& m, bool gathered) {
  if (threadIdx.x == 0) {
    m.query.init(32, C.kWarps);
    m.passes.init(block::kArrivingLanes, C.kWarps + (gathered ? C.kLoaderWarps : C.kLoaderWarps - 1));  // who makes passes leaves those that it works on, too
    m.units.init(block::kArrivingLanes, 1);
    m.piece.init(gathered ? 32 : 2, C.piece_users());
    ptx::barrier_init_fence();
  }
  __syncthreads();
}

/// Each of the warps that load, where pieces come by boxes.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_load_boxes(const BoxedAttendArgs& args, SharedMemory<C, V>& m, int warp) {
  if (warp == kPassWarp) {
    if (!may_begin_early<V>(args.attend)) ptx::grid_dependency_wait();
    PassMaker<C, V> passes(args.attend, m);
    while (!passes.done) passes.warp_make_next();
    return;
  }
  if ((int(threadIdx.x) & 31) == 0 && warp >= kKeyWarp) ptx::prefetch_map(warp == kKeyWarp ? &args.boxes.k.map : &args.boxes.v.map);
  ptx::grid_dependency_wait();
  if (warp == kKeyWarp) return BoxLoader<C, V, KRows<C>>{args, args.boxes.k, m, ptx::shared_address(m.k)}.run();
  if (warp == kKeyWarp + 1) return BoxLoader<C, V, VRows<C>>{args, args.boxes.v, m, ptx::shared_address(m.v)}.run();
  RingPlace<kPasses> at;
  RingPlace<1> to;
  bool fetched = false;
#pragma unroll 1
  for (;; at.next(), fetched ? to.next() : void()) {
    m.passes.wait_full(at);
    if (m.pass[at.at].end) return;
    fetched = warp_load_queries<C, V>(args.attend, m, m.pass[at.at], to);
    m.passes.warp_leave(at);
  }
}

template <AttendConfig C, class V>
__device__ __forceinline__ void block_run(const BoxedAttendArgs& args, char* memory) {
  constexpr int kLoaders = C.kLoaderWarps, kComputing = C.kWarps;
  static_assert(kLoaders * C.loader_registers() + kComputing * C.compute_registers() <= (kLoaders + kComputing) * C.launch_registers(),
                "registers nobody gives are waited for");
  SharedMemory<C, V>& m = *reinterpret_cast<SharedMemory<C, V>*>(memory);
  const bool gathered = C.gathers && args.boxes.rows == 0;
  block::Marks marks(args.attend, threadIdx.x == 32 * kLoaders);  // the first warp that computes
  block_init(m, gathered);
  ptx::grid_dependency_launch();  // a grid behind this one may be put in place as CTAs leave; it waits for all of them to end
  const int warp = ptx::uniform(int(threadIdx.x) >> 5);
  if (warp >= kLoaders) {
    ptx::warpgroup_take_registers<C.compute_registers()>();
    ptx::grid_dependency_wait();
    if constexpr (C.many) team_run_many<C, V>(args.attend, m, marks);
    else team_run<C, V>(args.attend, m, marks);
    return marks.leave();
  }
  ptx::warpgroup_give_registers<C.loader_registers()>();
  if constexpr (C.gathers) {
    if (gathered) return RowLoader<C, V>{args, m}.run();
  }
  warp_load_boxes<C, V>(args, m, warp);
}

}  // namespace kvloom::stream
