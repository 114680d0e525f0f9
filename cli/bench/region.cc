#include "cli/bench/region.h"

#include "kvloom/support/check.h"

#include <sys/mman.h>

namespace kvloom::cli {

Region::Region(int64_t bytes) : bytes_(bytes) {
  void* const p = mmap(nullptr, size_t(bytes > 0 ? bytes : 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) fail(ErrorCode::out_of_memory, "bench: got no memory, wanted {} bytes; free some memory", bytes);
  madvise(p, size_t(bytes), MADV_HUGEPAGE);  // as good without, only slower
  data_ = static_cast<char*>(p);
}

Region::~Region() {
  if (data_ != nullptr) munmap(data_, size_t(bytes_ > 0 ? bytes_ : 1));
}

}  // namespace kvloom::cli
