// short_rows for AVX-512: a file of its own because its loops are many. As in kernels_avx512.cc, nothing here may have external linkage but
// what is declared in kvloom::cpu::avx512.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc 12 warns inside its own intrinsics header (GCC bug 105593)
#define KVLOOM_TARGET avx512
#include "kvloom/cpu/simd_avx512.h"

#include "kvloom/cpu/short_rows.inl"
#endif
