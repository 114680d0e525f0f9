// The kernels for AVX2. This file is compiled with its own instruction set: nothing in it may have external linkage but what is declared
// in kvloom::cpu::avx2.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define KVLOOM_TARGET avx2
#include "kvloom/cpu/simd_avx2.h"

#include "kvloom/cpu/row_ops.inl"
#include "kvloom/cpu/score.inl"
#include "kvloom/cpu/tile.inl"
#endif
