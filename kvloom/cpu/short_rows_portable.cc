// short_rows for any processor: a file of its own because its loops are many. As in kernels_portable.cc, nothing here may have external
// linkage but what is declared in kvloom::cpu::portable.
#define KVLOOM_TARGET portable
#include "kvloom/cpu/simd_portable.h"

#include "kvloom/cpu/short_rows.inl"
