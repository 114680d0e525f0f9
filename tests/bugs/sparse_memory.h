// Huge address ranges that cost nothing: pages of zeros that exist once somebody writes to them. Offsets past 2^31 and 2^32 are real, the
// memory behind them is not.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include <sys/mman.h>

namespace kvloom::bugs {

class SparseMemory {
 public:
  explicit SparseMemory(int64_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) data_ = nullptr;
  }
  ~SparseMemory() {
    if (data_) munmap(data_, size_t(bytes_));
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  bool ok() const { return data_ != nullptr; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  int64_t bytes_;
};

}  // namespace kvloom::bugs
