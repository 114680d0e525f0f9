// The kernels for AVX-512. This file is compiled with its own instruction set: nothing in it may have external linkage but what is declared
// in kvloom::cpu::avx512.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc 12 warns inside its own intrinsics header (GCC bug 105593)
#define KVLOOM_TARGET avx512
#include "kvloom/cpu/simd_avx512.h"

#include "kvloom/cpu/row_ops.inl"
#include "kvloom/cpu/score.inl"
#include "kvloom/cpu/tile.inl"
#endif
