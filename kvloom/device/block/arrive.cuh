// Where an item ends that is a part of something: it arrives at its merge units, and whoever is last there merges.
#pragma once

#include "kvloom/device/block/finish.cuh"

namespace kvloom::block {

/// Whole warps of a CTA that work together, the CTA's first warp or another in front.
struct WholeCta {
  __device__ __forceinline__ static int warp() { return int(threadIdx.x) >> 5; }
  __device__ __forceinline__ static int warps() { return int(blockDim.x) >> 5; }
  __device__ __forceinline__ static void sync() { __syncthreads(); }
};

/// A merge unit that an item touches, looked up ahead of time: at the end of an item every look at the plan would be a wait for memory.
struct UnitAhead {
  int32_t index;
  MergeUnit unit;
};

/// Units that items touch: those of plan.touches [begin, begin + count). `known`: the first of them was looked up ahead.
struct Touches {
  int32_t begin = 0, count = 0;
  bool known = false;

  __device__ __forceinline__ static Touches of(const WorkItem& item) { return {item.touch_begin, item.touch_count}; }
};

/// What another lane knows.
__device__ __forceinline__ MergeUnit unit_of_lane(const MergeUnit& mine, int lane) {
  const auto of = [&](int32_t word) { return __shfl_sync(0xffffffffu, word, lane); };
  return {of(mine.row_begin), of(mine.row_count), of(mine.kv_head), of(mine.kv_head_count), of(mine.entry_begin), of(mine.entry_count), 0};
}

/// How a team merges. Together: units that a lane each knows, those of the lanes in `units`; all warps take some rows in turn, whichever unit has them.
template <MergeShape kShape>
struct MergeRows {
  static constexpr bool kTogether = kShape.together;

  template <class V, DType kType, class Team>
  __device__ __forceinline__ static void units(const AttendArgs& args, const PlanView& plan, uint32_t units, const MergeUnit& mine, int dims) {
    int next = Team::warp();  // this warp's next rows, counted from the unit at hand
#pragma unroll 1
    for (; units != 0; units &= units - 1) {
      const MergeUnit unit = unit_of_lane(mine, __ffs(int(units)) - 1);
      next = warp_merge_from<V, kType, Team>(args, plan, unit, next, dims);
    }
  }
  template <class V, DType kType, class Team>
  __device__ __forceinline__ static void unit(const AttendArgs& args, const PlanView& plan, const MergeUnit& unit, int dims) {
    warp_merge_from<V, kType, Team>(args, plan, unit, Team::warp(), dims);
  }

 private:
  /// A warp's rows of a unit, its first ones and then every so many; what `next` is in the next unit.
  template <class V, DType kType, class Team>
  __device__ __forceinline__ static int warp_merge_from(const AttendArgs& args, const PlanView& plan, const MergeUnit& unit, int next, int dims) {
    if constexpr (kShape.few_partials > 0) {
      const bool many_rows = unit.row_count >= kShape.few_rows * Team::warps();  // else warps would have nothing to do
      if (unit.entry_count <= kShape.few_partials && many_rows) return warp_merge_as<V, kType, kShape.of_few(), Team>(args, plan, unit, next, dims);
    }
    return warp_merge_as<V, kType, kShape, Team>(args, plan, unit, next, dims);
  }
  template <class V, DType kType, MergeShape kAs, class Team>
  __device__ __forceinline__ static int warp_merge_as(const AttendArgs& args, const PlanView& plan, const MergeUnit& unit, int next, int dims) {
    const int of_head = ceil_div(unit.row_count, kAs.rows), all = of_head * unit.kv_head_count;
#pragma unroll 1
    for (; next < all; next += Team::warps()) {
      const int row0 = next % of_head * kAs.rows;
      warp_merge_rows<V, kType, kAs>(args, plan, unit, next / of_head, row0, unit.row_count - row0, dims);
    }
    return next - all;
  }
};

/// Arrives at units; the team that was last merges them, and leaves their counters at zero. `teams`: that do an item together. `complete` is one
/// shared word. `first`: the first unit, where that is known. `Merge`: MergeRows or FoldRows. All threads of the team call it, after its partials are written.
template <class V, DType kType, class Merge, class Team>
__device__ __forceinline__ void team_arrive(const AttendArgs& args, const PlanView& plan, const Touches& touches, int dims, int teams, uint32_t* complete,
                                            const UnitAhead* first = nullptr, Marks marks = {}) {
  const int lane = int(threadIdx.x) & 31;
#pragma unroll 1
  for (int t0 = 0; t0 < touches.count; t0 += 32) {
    const bool known = first != nullptr && touches.known && t0 + lane == 0;
    const int32_t* const touched = plan.touches.data + touches.begin + t0 + lane;
    // Partials of all threads before the arrival; `complete` free again. What barriers put in order around the one atomic operation, which releases and
    // acquires for the device, is in order for the device: nobody needs a fence besides.
    Team::sync();
    if (Team::warp() == 0) {
      bool last = false;
      if (t0 + lane < touches.count) {
        const int32_t u = known ? first->index : *touched;
        const int32_t arrivals = known ? first->unit.arrivals : plan.units[u].arrivals;
        last = ptx::atomic_arrive(args.scratch.counters + u) + 1 == uint32_t(arrivals * teams);
        if (last) args.scratch.counters[u] = 0;
      }
      const uint32_t all = __ballot_sync(0xffffffffu, last);
      if (lane == 0) *complete = all;
      marks.merged(__popc(all));
    }
    Team::sync();
    if constexpr (kArrivingLanes == 32) Team::sync();  // racecheck takes `complete` for unordered behind one barrier of some of a CTA's warps
    const uint32_t all = *complete;
    if constexpr (Merge::kTogether) {
      if (all == 0) continue;
      MergeUnit mine{};
      if (all >> lane & 1u) mine = known ? first->unit : plan.units[*touched];
      Merge::template units<V, kType, Team>(args, plan, all, mine, dims);
    } else {
      for (uint32_t left = all; left != 0; left &= left - 1) {
        const int t = t0 + __ffs(int(left)) - 1;
        const MergeUnit unit = first != nullptr && touches.known && t == 0 ? first->unit : plan.units[plan.touches[touches.begin + t]];
        Merge::template unit<V, kType, Team>(args, plan, unit, dims);
      }
    }
  }
}

/// The same by a whole CTA. Not inlined: the kernels of a unit compile it once.
template <class V, DType kType, bool kInTurn>
__device__ __noinline__ void block_arrive(const AttendArgs& args, const PlanView& plan, const WorkItem& item, int dims, uint32_t* complete) {
  team_arrive<V, kType, MergeRows<merge_shape(kInTurn)>, WholeCta>(args, plan, Touches::of(item), dims, 1, complete);
}

}  // namespace kvloom::block
