// Memory of a benchmark's tensors and of the read ceiling: both on large pages, so that both pay the same for address translation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvloom::cli {

/// Zeroed anonymous memory, page-aligned, on 2 MiB pages where the system gives them (transparent huge pages: always or madvise).
class Region {
 public:
  Region() = default;
  /// Throws Error(out_of_memory).
  explicit Region(int64_t bytes);
  ~Region();
  Region(Region&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Region& operator=(Region&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  char* data() const { return data_; }
  int64_t size() const { return bytes_; }

 private:
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace kvloom::cli
