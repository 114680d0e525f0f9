// Compiled with its own instruction set: nothing in it may have external linkage but what is declared in kvloom::cpu::avx512.
#include "kvloom/cpu/element_rows.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc 12 warns inside its own intrinsics header (GCC bug 105593)
#define KVLOOM_TARGET avx512
#include "kvloom/cpu/simd_avx512.h"

#include "kvloom/cpu/element_rows.inl"
#else  // another processor: never chosen
namespace kvloom::cpu::avx512 {
constinit const ElementRows kElementRows = {};
}
#endif
