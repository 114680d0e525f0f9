// Tensor maps of Q, K, V and O for kernels that read and write them by boxes.
#pragma once

#include "kvloom/contract/attend_boxes.h"

namespace kvloom::runtime {

/// What boxes a kernel asks for.
struct BoxShape {
  int32_t keys;               // of K and V; a divisor where pages are smaller
  int32_t query_rows = 0;     // packed rows of Q; 0: it reads Q and writes O without boxes
  int32_t fetch_bytes = 256;  // by a read of K or V that misses L2: 128 or 256
  int32_t heads = 1;  // neighbouring KV heads of a box of K or V; one where they don't follow each other in memory, or pages are smaller
};

/// The maps for them. Throws unsupported where strides are such that no tensor map describes K and V, or places of their rows don't fit 32
/// bits.
AttendBoxes make_boxes(const AttentionSpec& spec, const AttendParams& params, const BoxShape& shape);

}  // namespace kvloom::runtime
