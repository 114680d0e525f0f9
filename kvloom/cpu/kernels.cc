#include "kvloom/cpu/kernels.h"

#include "kvloom/cpu/score.h"
#include "kvloom/support/check.h"

namespace kvloom::cpu {
namespace {

/// Until a target has dot-product kernels of its own, short query sides run on the tile kernel.
template <int64_t (*kTileArena)(const AttentionSpec&, int32_t)>
int64_t arena_bytes(const AttentionSpec& spec, const KernelClass& c, bool tile) {
  (void)tile;
  return kTileArena(spec, c.tile_rows);
}

#define KVLOOM_KERNELS(target) \
  Kernels { target::tile, target::tile, arena_bytes<target::tile_arena_bytes>, target::axpby_row, target::store_row, target::score_stage }

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
