#pragma once
#include "simt.h"
namespace kvloom::ptx {
inline void barrier_init(uint32_t b, uint32_t count) { simt::barrier_init(b, count); }
inline void barrier_end(uint32_t b) { simt::barrier_end(b); }
inline void barrier_arrive(uint32_t b) { simt::barrier_arrive(b); }
inline void cp_async_arrive(uint32_t b) { simt::arrive_after_copies(b); }
inline bool barrier_test(uint32_t b, uint32_t parity) { return simt::barrier_test(b, parity); }
inline void barrier_wait(uint32_t b, uint32_t parity) { simt::barrier_wait(b, parity); }
}  // namespace kvloom::ptx
