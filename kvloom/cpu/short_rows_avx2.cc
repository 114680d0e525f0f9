// short_rows for AVX2: a file of its own because its loops are many. As in kernels_avx2.cc, nothing here may have external linkage but
// what is declared in kvloom::cpu::avx2.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define KVLOOM_TARGET avx2
#include "kvloom/cpu/simd_avx2.h"

#include "kvloom/cpu/short_rows.inl"
#endif
