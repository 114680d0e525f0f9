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

/// Turns per position of fused RoPE, by some warps that have nothing else to do yet: whoever turns Q waits for them, and nobody looks at a key before Q is
/// there.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_fill_turns(const RopeSpec& rope, SharedMemory<C, V>& m, int warp) {
  if (warp >= kTurnWarps) return;
  block::fill_turns(rope, C.head_dim_qk, m.turns, warp * 32 + (int(threadIdx.x) & 31), 32 * kTurnWarps);
  __syncwarp();
  if (block::lane_arrives(int(threadIdx.x) & 31)) ptx::barrier_arrive(ptx::shared_address(&m.turned.full[0]));
}

/// Barriers, some by each warp: one after the other they take a thread hundreds of cycles.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_init(SharedMemory<C, V>& m, int warp, bool gathered) {
  constexpr int kEach = C.pieces / C.kWarps;
  static_assert(C.pieces % C.kWarps == 0);
  if ((warp < C.kLoaderWarps && warp != kQueryWarp) || !ptx::elect_one()) return;
  if (warp == kQueryWarp) {
    m.query.init(32, C.kWarps);
    m.passes.init(block::kArrivingLanes, C.kWarps + (gathered ? C.kLoaderWarps : C.kLoaderWarps - 1));  // who makes passes leaves those that it works on, too
    m.keys.init(block::kArrivingLanes, 1);
    m.units.init(block::kArrivingLanes, 1);
    if constexpr (block::has_query<V>()) m.turned.init(kTurnWarps * block::kArrivingLanes, 1);
    m.begun.init(block::kArrivingLanes, 1);
  } else {
    m.piece.template init_some<kEach>((warp - C.kLoaderWarps) * kEach, gathered ? 32 : 2, C.piece_users());
  }
  ptx::barrier_init_fence();
}

/// Each of the warps that load, where pieces come by boxes.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_load_boxes(const BoxedAttendArgs& args, SharedMemory<C, V>& m, int warp, uint32_t start) {
  if (warp == kPassWarp) {
    if (!may_begin_early<V>(args.attend)) {
      ptx::grid_dependency_wait();
      start = start_word(args.attend);
    }
    PassMaker<C, V> passes(args.attend, m, start);
#pragma unroll 1
    for (bool first = true; !passes.done; first = false) {
      passes.warp_make_next();
      if (first && !passes.done) warp_prefetch_pieces<C, V>(args, m, m.pass[0]);
    }
    return;
  }
  if ((int(threadIdx.x) & 31) == 0 && warp >= kKeyWarp) ptx::prefetch_map(warp == kKeyWarp ? &args.boxes.k.map : &args.boxes.v.map);
  if (warp == kKeyWarp + 1 && may_begin_early<V>(args.attend)) warp_prefetch_pages<C>(args.attend);
  ptx::grid_dependency_wait();
  if (warp == kKeyWarp && block::lane_arrives(int(threadIdx.x) & 31)) ptx::barrier_arrive(ptx::shared_address(&m.begun.full[0]));
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
  const int warp = ptx::uniform(int(threadIdx.x) >> 5);
  uint32_t start = 0;
  if (warp == kPassWarp && !gathered && may_begin_early<V>(args.attend)) start = start_word(args.attend);  // on its way while barriers are made
  warp_init(m, warp, gathered);
  __syncthreads();
  ptx::grid_dependency_launch();  // a grid behind this one may be put in place as CTAs leave; it waits for all of them to end
  if (warp >= kLoaders) {
    ptx::warpgroup_take_registers<C.compute_registers()>();
    if constexpr (block::has_query<V>()) warp_fill_turns<C, V>(args.attend.params.variant.rope, m, warp - kLoaders);
    ptx::grid_dependency_wait();
    if constexpr (C.many) team_run_many<C, V>(args.attend, m, marks);
    else team_run<C, V>(args.attend, m, marks);
    return marks.leave();
  }
  ptx::warpgroup_give_registers<C.loader_registers()>();
  if constexpr (C.gathers) {
    if (gathered) return RowLoader<C, V>{args, m}.run();
  }
  warp_load_boxes<C, V>(args, m, warp, start);
}

}  // namespace kvloom::stream
