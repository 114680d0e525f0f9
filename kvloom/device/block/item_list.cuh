// A CTA's list of items, as the warp goes through it that makes passes of them.
#pragma once

#include "kvloom/device/block/refused.cuh"
#include "kvloom/device/block/ring.cuh"
#include "kvloom/device/block/rows.cuh"
#include "kvloom/device/ptx/l2.cuh"

namespace kvloom::block {

/// The lane's word of what this CTA begins with.
__device__ __forceinline__ uint32_t start_word(const AttendArgs& args) { return reinterpret_cast<const uint32_t*>(args.starts + blockIdx.x)[int(threadIdx.x) & 31]; }

/// Every look at the plan is a wait for memory, one behind the other: before the CTA's first item, with nothing to hide them, one look is all there is
/// (CtaStart).
struct ItemList {
  /// The item that is next.
  struct Found {
    bool there;      // false: there are no more
    bool first;      // it stands in CtaStart
    int32_t index;   // in the plan, if not
    PlanView plan;   // if not
    uint32_t word;   // of CtaStart, one a lane
  };

  static constexpr int kItemWords = sizeof(WorkItem) / 4, kGroupWords = sizeof(RowGroup) / 4;
  const AttendArgs& args;
  uint32_t start = 0;  // start_word(), as long as `next` is 0
  int32_t next = 0;    // of the list
  int32_t items = -1;  // that there are; -1: not known

  /// By a whole warp. `ctas`: that share a list. `kStarts`: `start` is known.
  template <bool kStarts>
  __device__ __forceinline__ Found warp_find(int ctas) {
    const int lane = int(threadIdx.x) & 31;
    Found f{};
    if (kStarts && next == 0) {
      f.word = start;
      if (lane < 2) ptx::prefetch_line(static_cast<const char*>(args.plan) + 128 * lane);  // the header, which is looked at next
      items = int32_t(__shfl_sync(0xffffffffu, f.word, kItemWords + kGroupWords));
    }
    if (kStarts && items >= 0 && next >= items) return f;
    f.first = kStarts && items > 0 && next == 0;
    f.there = f.first;
    if (f.first) return f;
    f.plan = view_plan(args.plan);
    const int list = int(blockIdx.x) / ctas;
    f.index = f.plan.cta_indptr[list] + next;
    f.there = f.index < f.plan.cta_indptr[list + 1];
    return f;
  }
  __device__ __forceinline__ int kernel_class(const Found& f) const {
    return f.first ? args.starts[blockIdx.x].item.kernel_class : f.plan.items[f.index].kernel_class;
  }
  /// At the end of the list.
  template <DType kOutput>
  __device__ __forceinline__ void warp_finish(int dims) const {
    if (next == 0) warp_refuse_rows<kOutput>(args, dims, 0, 1);  // there were none at all
  }
};

/// Item and group of what was found; the plan where its rows may be looked up. Ends with __syncwarp.
__device__ __forceinline__ PlanView warp_fetch_found(const AttendArgs& args, const ItemList::Found& f, WorkItem& item, RowGroup& group) {
  constexpr int kItemWords = ItemList::kItemWords, kGroupWords = ItemList::kGroupWords;
  if (!f.first) {
    warp_fetch_item(f.plan, f.index, item, group);
    return f.plan;
  }
  const int lane = int(threadIdx.x) & 31;
  if (lane < kItemWords) reinterpret_cast<uint32_t*>(&item)[lane] = f.word;
  else if (lane < kItemWords + kGroupWords) reinterpret_cast<uint32_t*>(&group)[lane - kItemWords] = f.word;
  __syncwarp();
  return group.row_list < 0 ? PlanView{} : view_plan(args.plan);
}

/// How far a maker of passes has come: heads of the item at hand that are done, and where the next pass goes.
template <int kPasses>
struct MakerPlace {
  int head = 0;
  RingPlace<kPasses> to;
};

/// All passes of the list's items, which are of one kind, and the end. `Maker`: that of a family of kernels.
template <class Maker>
struct Passes {
  ItemList list;
  Maker maker;
  bool done = false;

  template <class Memory>
  __device__ __forceinline__ Passes(const AttendArgs& args, Memory& m, uint32_t start = 0) : list{args, start}, maker(args, m) {}

  __device__ __forceinline__ void warp_make_next() {
    if (done) return;
    const ItemList::Found found = list.template warp_find<Maker::kStarts>(Maker::kCtas);
    done = !found.there;
    if (done) {
      list.warp_finish<Maker::kOutput>(Maker::kDims);
      maker.warp_end(false);
    } else if (maker.warp_make(found)) {
      ++list.next;
    }
  }
};

}  // namespace kvloom::block
