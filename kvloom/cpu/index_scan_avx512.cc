// Compiled with its own instruction set: nothing in it may have external linkage but what is declared in kvloom::cpu::avx512.
#include "kvloom/cpu/index_scan.h"

#if defined(__AVX512F__)
#define KVLOOM_TARGET avx512
#include "kvloom/cpu/index_scan.inl"
#else  // another processor: never chosen
namespace kvloom::cpu::avx512 {
void scan_index(const void*, bool, const IndexRange*, int, IndexScan&) {}
}  // namespace kvloom::cpu::avx512
#endif
