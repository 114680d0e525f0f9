// Memory that ends where the data ends: one byte past it is a page that faults. What a kernel reads too far is found without a sanitizer.
#pragma once

#include <cstdint>

namespace kvloom::check {

class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  /// `bytes` of zeros whose last byte lies before an inaccessible page. The start is aligned as far as the size allows: data of
  /// elements is always aligned to its element.
  explicit GuardedBuffer(int64_t bytes);
  ~GuardedBuffer();
  GuardedBuffer(GuardedBuffer&& other) noexcept { swap(other); }
  GuardedBuffer& operator=(GuardedBuffer&& other) noexcept {
    swap(other);
    return *this;
  }

  char* data() const { return data_; }
  int64_t size() const { return size_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  /// Every byte becomes 0xFF: NaN in every floating-point type, -1 in every integer one.
  void poison();

 private:
  void swap(GuardedBuffer& other);

  void* mapping_ = nullptr;
  int64_t mapped_ = 0;
  char* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace kvloom::check
