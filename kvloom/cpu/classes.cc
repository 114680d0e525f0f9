#include "kvloom/base/math.h"
#include "kvloom/cpu/attend.h"

namespace kvloom::cpu {

void kernel_classes(const AttentionSpec& spec, Target target, KernelClass classes[2]) {
  (void)target;
  const int32_t group_size = max_of(1, spec.group_size());
  // Short query sides: up to 16 packed rows, all KV heads of a tile of keys together, so that a page is read whole.
  classes[0] = KernelClass{};
  classes[0].tile_rows = round_up(16, group_size);
  classes[0].tile_kv = 64;
  classes[0].heads_per_item = spec.num_kv_heads;
  classes[0].cost_per_token = 40;
  classes[0].cost_per_item = 2000;
  classes[1] = KernelClass{};
  classes[1].tile_rows = 384;
  classes[1].tile_kv = 256;
  classes[1].heads_per_item = 1;
  classes[1].cost_per_token = 2000;
  classes[1].cost_per_item = 20000;
}

}  // namespace kvloom::cpu
