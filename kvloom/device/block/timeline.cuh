// Marks of time (contract/timeline.h): one thread of a CTA notes when items begin and end. A unit that does not define KVLOOM_TIMELINE has none: what
// stands here is then empty, and leaves nothing in the machine code. A kernel places, in this order:
//   Marks marks(args, mine, ctas)  first of all; `mine`: this thread is the one that marks, of the CTA's first warp that arrives at merge units
//   marks.first(plan)              when the plan can be read
//   marks.fed(), attended(), stored()  within an item; of its passes, fed() counts the first time, the others the last
//   marks.done()                   after an item
//   marks.leave()                  last of all
#pragma once

#include "kvloom/contract/attend_args.h"
#include "kvloom/device/ptx/sm.cuh"

namespace kvloom::block {

#if defined(KVLOOM_TIMELINE)

inline constexpr bool kMarks = true;

class Marks {
 public:
  __device__ __forceinline__ Marks() {}
  __device__ __forceinline__ Marks(const AttendArgs& args, bool mine, int ctas = 1) : args_(&args), ctas_(ctas) {
    if (!mine || args.timeline == nullptr) return;
    item_ = reinterpret_cast<ItemTimes*>(args.timeline + gridDim.x);
    cta().begin = ptx::nanoseconds();
    cta().place = int32_t(ptx::sm_id());
  }
  __device__ __forceinline__ void first(const PlanView& plan) {
    if (item_ == nullptr) return;
    item_ += int64_t(plan.cta_indptr[int(blockIdx.x) / ctas_]) * ctas_ + int(blockIdx.x) % ctas_;
    cta().ready = ptx::nanoseconds();
  }
  __device__ __forceinline__ void fed() {
    if (item_ == nullptr || fed_) return;
    fed_ = true;
    item_->fed = ptx::nanoseconds();
    item_->cta = int32_t(blockIdx.x);
  }
  __device__ __forceinline__ void attended() {
    if (item_ != nullptr) item_->attended = ptx::nanoseconds();
  }
  __device__ __forceinline__ void stored() {
    if (item_ != nullptr) item_->stored = ptx::nanoseconds();
  }
  __device__ __forceinline__ void merged(int units) {
    if (item_ != nullptr && units > 0) item_->merged += units;
  }
  __device__ __forceinline__ void done() {
    if (item_ == nullptr) return;
    item_->end = ptx::nanoseconds();
    item_ += ctas_;
    fed_ = false;
  }
  __device__ __forceinline__ void leave() {
    if (item_ != nullptr) cta().end = ptx::nanoseconds();
  }

 private:
  __device__ __forceinline__ CtaTimes& cta() const { return args_->timeline[blockIdx.x]; }
  const AttendArgs* args_ = nullptr;
  ItemTimes* item_ = nullptr;  // the one under way; nullptr: another thread marks, or nobody asked
  int ctas_ = 1;
  bool fed_ = false;
};

#else

inline constexpr bool kMarks = false;

struct Marks {
  __device__ __forceinline__ Marks() {}
  __device__ __forceinline__ Marks(const AttendArgs&, bool, int = 1) {}
  __device__ __forceinline__ void first(const PlanView&) {}
  __device__ __forceinline__ void fed() {}
  __device__ __forceinline__ void attended() {}
  __device__ __forceinline__ void stored() {}
  __device__ __forceinline__ void merged(int) {}
  __device__ __forceinline__ void done() {}
  __device__ __forceinline__ void leave() {}
};

#endif

}  // namespace kvloom::block
