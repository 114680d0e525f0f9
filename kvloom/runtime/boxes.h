// Tensor maps of Q, K, V and O for kernels that read and write them by boxes.
#pragma once

#include "kvloom/contract/attend_boxes.h"

namespace kvloom::runtime {

/// Maps for boxes of `box_keys` keys, or of a divisor where pages are smaller, and of `tile_rows` packed rows of Q. Throws unsupported where
/// strides are such that no tensor map describes K and V, or places of their rows don't fit 32 bits.
AttendBoxes make_boxes(const AttentionSpec& spec, const AttendParams& params, int32_t box_keys, int32_t tile_rows);

}  // namespace kvloom::runtime
