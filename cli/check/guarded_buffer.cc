#include "cli/check/guarded_buffer.h"

#include "kvloom/support/check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace kvloom::check {

GuardedBuffer::GuardedBuffer(int64_t bytes) : size_(bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t body = (bytes + page - 1) / page * page;
  mapped_ = body + 2 * page;  // a guard on either side
  mapping_ = mmap(nullptr, size_t(mapped_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    fail(ErrorCode::out_of_memory, "check: memory: got none for {} bytes, wanted them; use smaller cases", bytes);
  }
  char* start = static_cast<char*>(mapping_) + page;
  if (body > 0) mprotect(start, size_t(body), PROT_READ | PROT_WRITE);
  data_ = start + body - bytes;
}

GuardedBuffer::~GuardedBuffer() {
  if (mapping_) munmap(mapping_, size_t(mapped_));
}

void GuardedBuffer::poison() {
  if (size_ > 0) std::memset(data_, 0xff, size_t(size_));
}

void GuardedBuffer::swap(GuardedBuffer& other) {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
}

}  // namespace kvloom::check
