// Tensor-core products of a warpgroup (sm_90a): 64 rows, N columns, 16 deep, fp32 accumulators; B, and A where it is not in registers, come from
// shared memory by descriptor. They run by themselves: operands and accumulators are theirs from the product on until a wait that covers it.
// Fragments: PTX ISA, "wgmma.m64nNk16"; a warp's part of d is 16 rows in the layout of mma.m16n8k16, tile after tile of 8 columns.
#pragma once

#include "kvloom/base/dtype.h"

namespace kvloom::ptx {

/// Registers that were written before may be read by the products that follow. Before the first of a group, by the whole warpgroup.
__device__ __forceinline__ void warpgroup_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// The products since the last one are a group.
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// At most `kPending` groups are still under way.
template <int kPending>
__device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Registers that a product has: what reads or writes them stays on its side of this. After a wait, when they are the program's again, and
/// before the products that take them (the compiler would put off what makes them, past the fence).
template <int kTiles>
__device__ __forceinline__ void pinned(float (&d)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
  }
}
template <int kSteps>
__device__ __forceinline__ void pinned(uint32_t (&a)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
  }
}

/// How B lies in shared memory: the 16 elements of a column side by side (k), or the columns of a row (mn).
enum class Major { k = 0, mn = 1 };

/// d (+)= A B, d of kTiles n8 tiles. A: 64 x 16, in registers (a warp its 16 rows, as mma.m16n8k16 has them) or by descriptor; B: 16 x 8 kTiles,
/// by descriptor. Without `kAdds` the product takes d's place.
template <DType kType, Major kMajor, int kTiles>
struct WarpgroupMma;

// The operands of d, n8 tile by n8 tile (c: "+", or "=" for new ones), and the text that names them.
#define KVLOOM_D4(c, i) c "f"(d[i][0]), c "f"(d[i][1]), c "f"(d[i][2]), c "f"(d[i][3])
#define KVLOOM_D16(c, i) KVLOOM_D4(c, i), KVLOOM_D4(c, i + 1), KVLOOM_D4(c, i + 2), KVLOOM_D4(c, i + 3)
#define KVLOOM_D64(c, i) KVLOOM_D16(c, i), KVLOOM_D16(c, i + 4), KVLOOM_D16(c, i + 8), KVLOOM_D16(c, i + 12)
#define KVLOOM_D_32(c) KVLOOM_D16(c, 0)
#define KVLOOM_D_64(c) KVLOOM_D16(c, 0), KVLOOM_D16(c, 4)
#define KVLOOM_D_96(c) KVLOOM_D16(c, 0), KVLOOM_D16(c, 4), KVLOOM_D16(c, 8)
#define KVLOOM_D_128(c) KVLOOM_D64(c, 0)
#define KVLOOM_D_192(c) KVLOOM_D64(c, 0), KVLOOM_D16(c, 16), KVLOOM_D16(c, 20)
#define KVLOOM_D_256(c) KVLOOM_D64(c, 0), KVLOOM_D64(c, 16)
#define KVLOOM_T_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define KVLOOM_T_64 KVLOOM_T_32 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define KVLOOM_T_96 KVLOOM_T_64 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define KVLOOM_T_128 KVLOOM_T_96 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define KVLOOM_T_192 KVLOOM_T_128 \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90" \
  ",%91,%92,%93,%94,%95"
#define KVLOOM_T_256 KVLOOM_T_192 \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117" \
  ",%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// P0 .. P5: the numbers of the operands behind d.
#define KVLOOM_WGMMA_OF(TYPE, NAME, N, P0, P1, P2, P3, P4, P5)                                                                              \
  template <Major kMajor>                                                                                                                   \
  struct WarpgroupMma<TYPE, kMajor, N / 8> {                                                                                                \
    template <bool kAdds>                                                                                                                   \
    __device__ __forceinline__ static void registers(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b) {                            \
      if constexpr (kAdds) {                                                                                                                \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" KVLOOM_T_##N "}, {%" #P0 ",%" #P1 ",%" #P2 ",%" #P3\
                     "}, %" #P4 ", 1, 1, 1, %" #P5 ";"                                                                                      \
                     : KVLOOM_D_##N("+")                                                                                                    \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int(kMajor)));                                               \
      } else {                                                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" KVLOOM_T_##N "}, {%" #P0 ",%" #P1 ",%" #P2 ",%" #P3\
                     "}, %" #P4 ", 0, 1, 1, %" #P5 ";"                                                                                      \
                     : KVLOOM_D_##N("=")                                                                                                    \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int(kMajor)));                                               \
      }                                                                                                                                     \
    }                                                                                                                                       \
    template <bool kAdds>                                                                                                                   \
    __device__ __forceinline__ static void shared(float (&d)[N / 8][4], uint64_t a, uint64_t b) {                                           \
      if constexpr (kAdds) {                                                                                                                \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" KVLOOM_T_##N "}, %" #P0 ", %" #P1 ", 1, 1, 1, 0, %" #P2 ";"\
                     : KVLOOM_D_##N("+")                                                                                                    \
                     : "l"(a), "l"(b), "n"(int(kMajor)));                                                                                   \
      } else {                                                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" KVLOOM_T_##N "}, %" #P0 ", %" #P1 ", 0, 1, 1, 0, %" #P2 ";"\
                     : KVLOOM_D_##N("=")                                                                                                    \
                     : "l"(a), "l"(b), "n"(int(kMajor)));                                                                                   \
      }                                                                                                                                     \
    }                                                                                                                                       \
  };
#define KVLOOM_WGMMA(N, ...)                                                                                                                \
  KVLOOM_WGMMA_OF(DType::bf16, "bf16", N, __VA_ARGS__)                                                                                      \
  KVLOOM_WGMMA_OF(DType::f16, "f16", N, __VA_ARGS__)

KVLOOM_WGMMA(32, 16, 17, 18, 19, 20, 21)
KVLOOM_WGMMA(64, 32, 33, 34, 35, 36, 37)
KVLOOM_WGMMA(96, 48, 49, 50, 51, 52, 53)
KVLOOM_WGMMA(128, 64, 65, 66, 67, 68, 69)
KVLOOM_WGMMA(192, 96, 97, 98, 99, 100, 101)
KVLOOM_WGMMA(256, 128, 129, 130, 131, 132, 133)
#undef KVLOOM_WGMMA
#undef KVLOOM_WGMMA_OF

}  // namespace kvloom::ptx
