// Index arrays as engines have them: int32 or int64, read in place.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom {

/// A view of caller-owned integers. `data == nullptr` means "not given".
struct IndexView {
  const void* data = nullptr;
  int64_t size = 0;  // elements
  bool is_64 = false;

  IndexView() = default;
  KVLOOM_HD constexpr IndexView(const int32_t* p, int64_t n) : data(p), size(n), is_64(false) {}
  KVLOOM_HD constexpr IndexView(const int64_t* p, int64_t n) : data(p), size(n), is_64(true) {}

  KVLOOM_HD bool given() const { return data != nullptr; }
  KVLOOM_HD int64_t operator[](int64_t i) const {
    return is_64 ? static_cast<const int64_t*>(data)[i] : int64_t(static_cast<const int32_t*>(data)[i]);
  }
  KVLOOM_HD const void* at(int64_t i) const { return static_cast<const char*>(data) + (i << (is_64 ? 3 : 2)); }
};

}  // namespace kvloom
