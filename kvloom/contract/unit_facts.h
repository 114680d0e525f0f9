// What a compiled kernel of attention says of itself: how it is launched. A device variable beside the kernel, of its name and "_facts".
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom {

struct KernelFacts {
  int32_t threads;
  int32_t shared_bytes;  // dynamic
  int32_t ctas_per_sm;   // aimed at
  int32_t cluster = 1;   // CTAs that do an item of the plan together: so many times as many are launched
  // Above 0: the kernel takes BoxedAttendArgs (contract/attend_boxes.h), with boxes of so many keys or of a divisor, and of so many packed rows.
  int32_t box_keys = 0, tile_rows = 0;
};

}  // namespace kvloom
