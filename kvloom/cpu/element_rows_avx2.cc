// Compiled with its own instruction set: nothing in it may have external linkage but what is declared in kvloom::cpu::avx2.
#include "kvloom/cpu/element_rows.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define KVLOOM_TARGET avx2
#include "kvloom/cpu/simd_avx2.h"

#include "kvloom/cpu/element_rows.inl"
#else  // another processor: never chosen
namespace kvloom::cpu::avx2 {
constinit const ElementRows kElementRows = {};
}
#endif
