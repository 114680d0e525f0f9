#include "kvloom/base/math.h"
#include "kvloom/contract/plan_format.h"
#include "kvloom/cpu/attend.h"
#include "kvloom/cpu/tile_shape.h"

namespace kvloom::cpu {
namespace {

/// Packed rows of a compute tile. Packing a block of keys costs as much as some 15 rows of products, so many rows must share it; a few
/// hundred do, and still leave enough tiles to spread over threads (docs/lab-notes.md, "CPU prefill").
constexpr int32_t kComputeRows = 384;

/// The planner's bound; a portable target with 576 + 512 dims is 6 % beyond it.
constexpr int64_t kMostPerToken = 65536;

/// fp32 operations a nanosecond of the tile kernel on one core. Only the ratio to the costs of the other class matters, and only where a
/// plan mixes both.
int64_t flop_per_ns(Target target) {
  switch (target) {
    case Target::portable:
      return 12;
    case Target::avx2:
      return 75;
    case Target::avx512:
      return 130;
  }
  return 12;
}

}  // namespace

void kernel_classes(const AttentionSpec& spec, Target target, KernelClass classes[2]) {
  const int32_t group_size = max_of(1, spec.group_size());
  const int64_t dims = int64_t(spec.head_dim_qk) + spec.head_dim_vo;
  // Short query sides: up to 16 packed rows, all KV heads of a tile of keys together, or as many as an item can name, so that a page is read
  // whole (a user's hook may keep a key for one head and not for another: then a head by itself, which reads what it keeps). A key costs its
  // bytes at 14 GB/s or, for narrow types, the conversion of its elements.
  classes[0] = KernelClass{};
  classes[0].tile_rows = round_up(16, group_size);
  classes[0].tile_kv = 64;
  const bool masks_by_head = spec.variant.user != nullptr && spec.variant.user->keep != nullptr;
  classes[0].heads_per_item = masks_by_head ? 1 : min_of(spec.num_kv_heads, kMaxHeadsPerItem);
  classes[0].cost_per_token = static_cast<int32_t>(max_of(dims * size_of(spec.kv_dtype) / 14, dims / 6)) + 1;
  classes[0].cost_per_item = 2000;
  // The rest: one KV head an item. A key costs its products with every row of a full tile; a row is read, scaled, finished and stored once.
  classes[1] = KernelClass{};
  classes[1].tile_rows = kComputeRows;
  classes[1].tile_kv = tile_block_keys(spec);
  classes[1].heads_per_item = 1;
  const int64_t products = 2 * dims * kComputeRows / flop_per_ns(target) + 1;
  classes[1].cost_per_token = static_cast<int32_t>(min_of(products, kMostPerToken));
  classes[1].cost_per_tile_row = static_cast<int32_t>(dims);
  classes[1].cost_per_item = 3000;
}

}  // namespace kvloom::cpu
