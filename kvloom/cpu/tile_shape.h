// Sizes that the planner and the tile kernels of every target agree on.
#pragma once

#include "kvloom/base/math.h"
#include "kvloom/contract/spec.h"

namespace kvloom::cpu {

/// Keys that the tile kernel packs at a time: K and V of a block, in fp32, are a quarter of a 512 KiB second-level cache; scores, a stride
/// of Q and O, and the next block's rows on their way take the rest. Blocks are counted from list token 0.
KVLOOM_HD constexpr int32_t tile_block_keys(const AttentionSpec& spec) {
  return clamp_to(32768 / max_of(1, spec.head_dim_qk + spec.head_dim_vo) / 64 * 64, 64, 256);
}

}  // namespace kvloom::cpu
