// A CTA's warps and what each of them does, from its list of items to the end.
#pragma once

#include "kvloom/device/ptx/sync.cuh"
#include "kvloom/device/stream/gather.cuh"
#include "kvloom/device/stream/many.cuh"

namespace kvloom::stream {

/// The warps that compute: pass after pass to the next end. `on_stored`: called where a pass's rows are stored, with the place of the next pass, before
/// anything is merged.
template <AttendConfig C, class V, class OnStored>
__device__ __forceinline__ void team_run(const AttendArgs& args, SharedMemory<C, V>& m, WarpPlaces<C>& places, block::Marks& marks, OnStored&& on_stored) {
  Warp<C, V> warp(args, m, places);
#pragma unroll 1
  for (RingPlace<kPasses>& at = places.pass;; at.next()) {
    m.passes.wait_full(at);
    Pass<C>& pass = m.pass[at.at];
    const bool end = pass.end;
    if (!C.beside && end) return;
    if (!end) {
      warp.attend(pass, marks);
      team_store(warp, pass, m);
      marks.stored();
      RingPlace<kPasses> next = at;
      next.next();
      on_stored(next);
    }
    team_arrive_behind<C, V>(args, m, pass, at, end ? block::Marks() : marks);
    if (end) return;
    team_leave_pass<C, V>(m, pass, at, marks);
  }
}

/// Turns per position of fused RoPE, by some warps that have nothing else to do yet: whoever turns Q waits for them, and nobody looks at a key before Q is
/// there.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_fill_turns(const RopeSpec& rope, SharedMemory<C, V>& m, int warp) {
  warp -= kFirstTurnWarp;
  if (warp < 0 || warp >= kTurnWarps) return;
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
      start = block::start_word(args.attend);
    }
    block::Passes<PassMaker<C, V>> passes(args.attend, m, start);
#pragma unroll 1
    for (bool first = true; !passes.done; first = false) {
      passes.warp_make_next();
      if (first && !passes.done) warp_prefetch_pieces<C, V>(args, m, m.pass[0]);
    }
    return;
  }
  if ((int(threadIdx.x) & 31) == 0 && warp != kQueryWarp) ptx::prefetch_map(warp == kKeyWarp ? &args.boxes.k.map : &args.boxes.v.map);
  if (warp == kKeyWarp + 1 && may_begin_early<V>(args.attend)) warp_prefetch_pages<C>(args.attend);
  ptx::grid_dependency_wait();
  if (warp == kKeyWarp && block::lane_arrives(int(threadIdx.x) & 31)) ptx::barrier_arrive(ptx::shared_address(&m.begun.full[0]));
  RingPlace<kPasses> at;
  if (warp == kKeyWarp) {
    BoxLoader<C, V, KRows<C>> keys{args, args.boxes.k, m, ptx::shared_address(m.k)};
    block::each_pass(m, at, keys);
  } else if (warp == kKeyWarp + 1) {
    BoxLoader<C, V, VRows<C>> values{args, args.boxes.v, m, ptx::shared_address(m.v)};
    block::each_pass(m, at, values);
  } else {
    QueryLoader<C, V> queries{args.attend, m};
    block::each_pass(m, at, queries);
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
  if (warp == kPassWarp && !gathered && may_begin_early<V>(args.attend)) start = block::start_word(args.attend);  // on its way while barriers are made
  warp_init(m, warp, gathered);
  __syncthreads();
  ptx::grid_dependency_launch();  // a grid behind this one may be put in place as CTAs leave; it waits for all of them to end
  if (warp >= kLoaders) {
    ptx::warpgroup_take_registers<C.compute_registers()>();
    if constexpr (block::has_query<V>()) warp_fill_turns<C, V>(args.attend.params.variant.rope, m, warp - kLoaders);
    ptx::grid_dependency_wait();
    if constexpr (C.many) {
      team_run_many<C, V>(args.attend, m, marks);
    } else {
      marks.first(view_plan(args.attend.plan));
      WarpPlaces<C> places = first_places<C>();
      team_run<C, V>(args.attend, m, places, marks, [](const RingPlace<kPasses>&) {});
    }
    return marks.leave();
  }
  ptx::warpgroup_give_registers<C.loader_registers()>();
  if constexpr (C.gathers) {
    if (gathered) return RowLoader<C, V>{args, m}.run();
  }
  warp_load_boxes<C, V>(args, m, warp, start);
}

}  // namespace kvloom::stream
