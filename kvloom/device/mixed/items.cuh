// The passes of a CTA's items of both kinds, in the order of its list. Each kind has places of its own for them; where the kind changes it gets an
// end, as at the end of the list.
#pragma once

#include "kvloom/device/mixed/shared.cuh"
#include "kvloom/device/sm90/items.cuh"
#include "kvloom/device/stream/items.cuh"

namespace kvloom::mixed {

template <AttendConfig C, class V>
struct Passes {
  block::ItemList list;
  sm90::PassMaker<Places<C, V>::many(), V> many;
  stream::PassMaker<Places<C, V>::few(), V> few;
  int kind;
  bool done;

  __device__ __forceinline__ Passes(const AttendArgs& args, ManyMemory<C, V>& many_memory, FewMemory<C, V>& few_memory, const Making& so_far, uint32_t start)
      : list{args, start, so_far.next, so_far.items}, many(args, many_memory), few(args, few_memory), kind(so_far.kind), done(so_far.done) {
    many.at = so_far.many, few.at = so_far.few;
    few.waiting = so_far.waiting;
  }
  __device__ __forceinline__ Making making() const { return {list.next, list.items, kind, done, many.at, few.at, few.waiting}; }

  __device__ __forceinline__ void warp_make_next() {
    if (done) return;
    const block::ItemList::Found found = list.template warp_find<true>(1);
    if (found.there && list.kernel_class(found) == kind) {
      if (kind == 1 ? many.warp_make(found) : few.warp_make(found)) ++list.next;
      return;
    }
    done = !found.there;
    if (done) list.warp_finish<C.many.o_dtype>(C.many.head_dim_vo);
    if (kind == 1) many.warp_end(!done);
    else few.warp_end(!done);
    kind ^= 1;
  }
};

/// Behind the passes of one kind, at `at`: true if the other's come next.
template <class Memory, int kPlaces>
__device__ __forceinline__ bool warp_go_on(Memory& m, block::RingPlace<kPlaces>& at) {
  const bool more = m.pass[at.at].more;
  m.passes.warp_leave(at);
  at.next();
  return more;
}

}  // namespace kvloom::mixed
