// What a device kernel is launched with: one struct by value. The runtime fills it, kernels read it.
#pragma once

#include "kvloom/base/fast_divide.h"
#include "kvloom/contract/params.h"
#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/timeline.h"

namespace kvloom {

struct AttendArgs {
  AttendParams params;
  const void* plan = nullptr;  // plan buffer, device memory
  const CtaStart* starts = nullptr;  // beside it, [num_ctas]
  Scratch scratch;
  FastDivide page_size;        // ragged: 1
  FastDivide group_size;       // q heads a KV head
  int32_t num_qo_heads = 0;
  bool plan_settled = false;   // no kernel writes the plan: it may be read before those in front are done
  CtaTimes* timeline = nullptr;  // memory of a TimelineLayout, zeros; nullptr: nobody asked. Kernels that have no marks leave it alone
};

}  // namespace kvloom
