// What a compiled kernel of attention says of itself: how it is launched. A device variable beside the kernel, of its name and "_facts".
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom {

struct KernelFacts {
  int32_t threads;
  int32_t shared_bytes;  // dynamic
  int32_t ctas_per_sm;   // aimed at
  int32_t cluster = 1;   // CTAs that do an item of the plan together: so many times as many are launched
  // Above 0: the kernel takes BoxedAttendArgs (contract/attend_boxes.h), with boxes of so many keys or of a divisor, of so many packed rows (0:
  // Q and O have none), and of so many KV heads.
  int32_t box_keys = 0, tile_rows = 0, box_heads = 1;
  int32_t fetch_bytes = 256;  // by a box's reads that miss L2: 128 or 256
};

}  // namespace kvloom
