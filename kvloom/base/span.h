// A pointer with its length. std::span is not there under NVRTC.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom {

template <class T>
struct Span {
  T* data = nullptr;
  int64_t size = 0;

  KVLOOM_HD constexpr T& operator[](int64_t i) const { return data[i]; }
  KVLOOM_HD constexpr T* begin() const { return data; }
  KVLOOM_HD constexpr T* end() const { return data + size; }
  KVLOOM_HD constexpr bool empty() const { return size == 0; }
};

}  // namespace kvloom
