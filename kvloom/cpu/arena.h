// Carves a thread's arena into arrays, or only counts the bytes: the same walk sizes the arena and uses it, so the two can't disagree.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom::cpu {

class Arena {
 public:
  /// `base` nullptr: only counts.
  KVLOOM_HD explicit Arena(void* base) : base_(reinterpret_cast<uintptr_t>(base)) {}

  /// `count` elements, 64-byte aligned, not initialised.
  template <class T>
  KVLOOM_HD T* take(int64_t count) {
    const uintptr_t at = base_ + static_cast<uintptr_t>(bytes_);
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 63) & ~int64_t(63);
    return reinterpret_cast<T*>(at);
  }

  KVLOOM_HD int64_t bytes() const { return bytes_; }

 private:
  uintptr_t base_;
  int64_t bytes_ = 0;
};

}  // namespace kvloom::cpu
