#pragma once
#include "simt.h"
namespace kvloom::ptx {
inline uint32_t shared_address(const void* p) { return simt::shared_address(p); }
inline void cp_async_16(uint32_t to, const void* from, uint32_t bytes) { simt::copy_later(to, from, bytes, 16); }
inline void cp_async_commit() { simt::commit_copies(); }
template <int kPending>
inline void cp_async_wait() { simt::wait_copies(kPending); }
}  // namespace kvloom::ptx
