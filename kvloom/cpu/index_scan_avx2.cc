// Compiled with its own instruction set: nothing in it may have external linkage but what is declared in kvloom::cpu::avx2.
#include "kvloom/cpu/index_scan.h"

#if defined(__AVX2__)
#define KVLOOM_TARGET avx2
#include "kvloom/cpu/index_scan.inl"
#else  // another processor: never chosen
namespace kvloom::cpu::avx2 {
void scan_index(const void*, bool, const IndexRange*, int, IndexScan&) {}
}  // namespace kvloom::cpu::avx2
#endif
