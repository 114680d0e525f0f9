// attend, family mixed: steps of both kinds on Hopper. A CTA goes through items of few rows as family stream does, and through those of many as
// family sm90 does, with the same warps in the same shared memory: four that load, eight that compute. Those two functions work on runs of items of
// one kind; where the kind changes the memory changes hands. Passes are made ahead across such a change.
#pragma once

#include "kvloom/device/mixed/items.cuh"
#include "kvloom/device/sm90/run.cuh"
#include "kvloom/device/stream/run.cuh"

namespace kvloom::mixed {

template <AttendConfig C, class V>
struct Cta {
  static constexpr sm90::AttendConfig M = Places<C, V>::many();
  static constexpr stream::AttendConfig F = Places<C, V>::few();
  static_assert(M.threads() == F.threads() && M.ctas == 1 && sm90::kLoaderWarps == stream::kPassWarp && stream::kKeyWarp == 0 &&
                    sm90::kRowWarps == F.kLoaderWarps,
                "a warp has the same task for both kinds");
  static_assert(M.merge_partials == F.merge_partials, "what is merged does not hang on who came last");
  static constexpr int kMakerWarp = stream::kPassWarp, kQueryWarp = stream::kQueryWarp;

  const BoxedAttendArgs& args;
  ManyMemory<C, V>& many;
  FewMemory<C, V>& few;
  BothMemory<C, V>& both;
  const bool gathered;  // rows are fetched one by one, by all warps that load

  /// All who have items in their hands are done with the memory of one kind; what comes next lands in that of the other. Who computes gets there
  /// last, and waits for nobody.
  __device__ __forceinline__ void hand_over() const {
    constexpr int kWarps = C.few.kWarps + C.few.kLoaderWarps;
    ptx::fence_shared_async();
    __syncwarp();
    ptx::named_barrier_sync_anywhere(kHandOverBarrier, 32 * (gathered ? kWarps : kWarps - 1));  // boxes: who makes passes has none
  }

  /// ... by those who compute, where the pass at `next` ends one kind and the other's follow: before they merge what they have stored.
  template <class Memory, int kPlaces>
  __device__ __forceinline__ void hand_over_at(Memory& m, const block::RingPlace<kPlaces>& next) const {
    m.passes.wait_full(next);
    if (!m.pass[next.at].end || !m.pass[next.at].more) return;
    ptx::store_wait();  // boxes on their way out are still read
    hand_over();
  }

  /// The warps that compute.
  __device__ __forceinline__ void team_run(block::Marks& marks) const {
    marks.first(view_plan(args.attend.plan));
    Computing<C, V>& kept = both.computing[ptx::uniform(int(threadIdx.x) >> 5) - F.kLoaderWarps];
    kept = {{}, stream::first_places<F>()};
    __syncwarp();
    many.passes.wait_full({});
    if (many.pass[0].end && many.pass[0].more) hand_over();  // the list begins with few rows
#pragma unroll 1
    for (;;) {
      sm90::TeamPlaces<M> many_at = kept.many;
      sm90::team_run<M, V>(args, many, many_at, gathered, marks, [&](const auto& next) { hand_over_at(many, next); });
      if (!warp_go_on(many, many_at.pass)) return;
      kept.many = many_at;
      __syncwarp();
      stream::WarpPlaces<F> few_at = kept.few;
      stream::team_run<F, V>(args.attend, few, few_at, marks, [&](const auto& next) { hand_over_at(few, next); });
      if (!warp_go_on(few, few_at.pass)) return;
      kept.few = few_at;
      ptx::named_barrier_sync(stream::kComputeBarrier, 32 * F.kWarps);  // for ptxas: without one, loops of the two kinds get in each other's registers
    }
  }

  /// A warp that loads, where it comes by boxes: passes of many rows, of few, of many, ... Before it can fetch the first of some it looks at them,
  /// while others still work with the memory that it will have.
  template <class Many, class Few>
  __device__ __forceinline__ void warp_load(Many& on_many, Few& on_few) const {
    block::RingPlace<sm90::kPasses> many_at;
    block::RingPlace<stream::kPasses> few_at;
#pragma unroll 1
    for (;;) {
      block::each_pass(many, many_at, on_many);
      if (!warp_go_on(many, many_at)) return;
      on_few.known().wait_full(few_at);
      on_few.warp_look_ahead(few.pass[few_at.at]);
      hand_over();
      block::each_pass(few, few_at, on_few);
      if (!warp_go_on(few, few_at)) return;
      on_many.known().wait_full(many_at);
      on_many.warp_look_ahead(many.pass[many_at.at]);
      hand_over();
    }
  }
  template <class Rows>
  __device__ __forceinline__ void warp_load_boxes(const AttendBoxes::Of& of, uint32_t pieces) const {
    sm90::TileLoader<M, V> tiles{args, many};
    stream::BoxLoader<F, V, Rows> boxes{args, of, few, pieces};
    warp_load(tiles, boxes);
  }
  __device__ __forceinline__ void warp_load_queries() const {
    sm90::QueryLoader<M, V> of_many{args, many};
    stream::QueryLoader<F, V> of_few{args.attend, few};
    warp_load(of_many, of_few);
  }

  /// Makes all passes, where somebody else loads.
  __device__ __forceinline__ void warp_make(uint32_t start) const {
    Passes<C, V> passes(args.attend, many, few, {}, start);
    while (!passes.done) passes.warp_make_next();
  }
  /// The next pass of one kind for a warp that fetches rows. False: it was the end of all.
  template <class Memory, class Loader>
  __device__ __forceinline__ bool warp_load_rows(Memory& m, Loader loader, decltype(Loader::progress)& kept, int& kind) const {
    loader.progress = kept;
    auto& at = loader.progress.pass;
    loader.known().wait_full(at);
    const auto& pass = m.pass[at.at];
    if (pass.end) {
      if (!warp_go_on(m, at)) return false;
      hand_over();
      kind ^= 1;
    } else {
      loader.warp_fetch_pass(pass);
      m.passes.warp_leave(at);
      at.next();
    }
    kept = loader.progress;
    __syncwarp();
    return true;
  }
  /// Who makes passes, and all who load where rows are fetched one by one: then passes are made one ahead.
  __device__ __forceinline__ void warp_make_and_load(int warp) const {
    const bool makes = warp == kMakerWarp;
    Loading<C, V>& loading = both.loading[warp];
    loading = {{}, stream::RowLoaderProgress<F>(warp)};
    if (makes) both.making = {};
    __syncwarp();
    int kind = 1;
#pragma unroll 1
    for (bool ahead = false;; ahead = true) {
      if (makes) {
        Passes<C, V> passes(args.attend, many, few, both.making, both.making.next == 0 ? block::start_word(args.attend) : 0);
        __syncwarp();  // all lanes have read it
        passes.warp_make_next();
        both.making = passes.making();
        __syncwarp();
        if (!gathered && both.making.done) return;
      }
      if (!gathered) continue;
      if (!ahead) {
        ptx::grid_dependency_wait();
      } else if (kind == 1) {
        if (!warp_load_rows(many, sm90::RowLoader<M, V>{args, many}, loading.many, kind)) return;
      } else {
        if (!warp_load_rows(few, stream::RowLoader<F, V>{args, few}, loading.few, kind)) return;
      }
    }
  }

  /// Each of the warps that load.
  __device__ __forceinline__ void warp_run(int warp) const {
    const bool makes = warp == kMakerWarp, keys = warp == stream::kKeyWarp;
    if (!makes && warp != kQueryWarp && !gathered && (int(threadIdx.x) & 31) == 0) ptx::prefetch_map(keys ? &args.boxes.k.map : &args.boxes.v.map);
    if (!makes || !stream::may_begin_early<V>(args.attend)) ptx::grid_dependency_wait();
    if constexpr (C.few.gathers) {
      if (makes || gathered) return warp_make_and_load(warp);
    } else {
      if (makes) return warp_make(block::start_word(args.attend));
    }
    if (warp == kQueryWarp) return warp_load_queries();
    if constexpr (F.head_dim_qk == F.head_dim_vo) {  // the code of both
      warp_load_boxes<stream::KRows<F>>(keys ? args.boxes.k : args.boxes.v, keys ? ptx::shared_address(few.k) : ptx::shared_address(few.v));
    } else if (keys) {
      warp_load_boxes<stream::KRows<F>>(args.boxes.k, ptx::shared_address(few.k));
    } else {
      warp_load_boxes<stream::VRows<F>>(args.boxes.v, ptx::shared_address(few.v));
    }
  }
};

template <AttendConfig C, class V>
__device__ __forceinline__ void block_run(const BoxedAttendArgs& args, char* memory) {
  constexpr int kLoaders = C.few.kLoaderWarps, kComputing = C.few.kWarps;
  static_assert(kLoaders * C.loader_registers() + kComputing * C.compute_registers() <= (kLoaders + kComputing) * C.launch_registers(),
                "registers nobody gives are waited for");
  const bool gathered = C.few.gathers && args.boxes.rows == 0;
  block::Marks marks(args.attend, threadIdx.x == 32 * kLoaders);  // the first warp that computes
  const Cta<C, V> cta{args, *reinterpret_cast<ManyMemory<C, V>*>(memory), *reinterpret_cast<FewMemory<C, V>*>(memory), *reinterpret_cast<BothMemory<C, V>*>(memory + kBothAt<C, V>), gathered};
  const int warp = ptx::uniform(int(threadIdx.x) >> 5);
  sm90::block_prepare(cta.many, gathered);
  stream::warp_init(cta.few, warp, gathered);
  __syncthreads();
  ptx::grid_dependency_launch();  // a grid behind this one may be put in place as CTAs leave; it waits for all of them to end
  if (warp >= kLoaders) {
    ptx::warpgroup_take_registers<C.compute_registers()>();
    ptx::grid_dependency_wait();
    cta.team_run(marks);
    marks.leave();
  } else {
    ptx::warpgroup_give_registers<C.loader_registers()>();
    cta.warp_run(warp);
  }
}

}  // namespace kvloom::mixed
