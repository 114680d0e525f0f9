#pragma once
#include "simt.h"
namespace kvloom::ptx {
inline void prefetch_line(const void* at) { [[maybe_unused]] volatile char c = *static_cast<const char*>(at); }
template <class T>
inline T load_l2(const T* at) { return *at; }
}  // namespace kvloom::ptx
