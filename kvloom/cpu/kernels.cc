#include "kvloom/cpu/kernels.h"

#include "kvloom/cpu/score.h"
#include "kvloom/support/check.h"

namespace kvloom::cpu {
namespace {

template <int64_t (*kTileBytes)(const AttentionSpec&, int32_t), int64_t (*kShortBytes)(const AttentionSpec&, int32_t, int32_t)>
int64_t arena_bytes(const AttentionSpec& spec, const KernelClass& c, bool tile) {
  return tile ? kTileBytes(spec, c.tile_rows) : kShortBytes(spec, c.tile_rows, c.heads_per_item);
}

#define KVLOOM_KERNELS(target)                                                                                                  \
  Kernels {                                                                                                                     \
    target::short_rows, target::tile, arena_bytes<target::tile_arena_bytes, target::short_rows_arena_bytes>, target::axpby_row, \
        target::store_row, target::score_stage                                                                                  \
  }

const Kernels kPortable = KVLOOM_KERNELS(portable);
#if defined(__x86_64__)
const Kernels kAvx2 = KVLOOM_KERNELS(avx2);
const Kernels kAvx512 = KVLOOM_KERNELS(avx512);
#endif

}  // namespace

const Kernels& kernels(Target target) {
#if defined(__x86_64__)
  if (target == Target::avx2) return kAvx2;
  if (target == Target::avx512) return kAvx512;
#endif
  require(target == Target::portable, "cpu: kernels: got target {}, which this build has no kernels for; use portable", name_of(target));
  return kPortable;
}

}  // namespace kvloom::cpu
