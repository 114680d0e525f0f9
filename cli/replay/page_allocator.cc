#include "cli/replay/page_allocator.h"

#include "kvloom/support/check.h"

#include <limits>

namespace kvloom::replay {

PageAllocator::PageAllocator(int64_t pages) {
  require(pages >= 0 && pages <= std::numeric_limits<int32_t>::max(), "KV pool: pages: got {}, wanted 0 to {}; take a smaller pool", pages,
          std::numeric_limits<int32_t>::max());
  owners_.resize(static_cast<size_t>(pages));
}

int32_t PageAllocator::allocate() {
  int32_t page;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else if (fresh_ < total_pages()) {
    page = static_cast<int32_t>(fresh_++);
  } else {
    return -1;
  }
  owners_[static_cast<size_t>(page)] = 1;
  return page;
}

void PageAllocator::release(int32_t page) {
  int32_t& owners = owners_[static_cast<size_t>(page)];
  if (owners <= 0) fail(ErrorCode::internal, "KV pool: page {} released: got {} owners, wanted one or more", page, owners);
  if (--owners == 0) free_.push_back(page);
}

}  // namespace kvloom::replay
