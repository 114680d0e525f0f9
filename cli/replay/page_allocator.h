// Which pages of a KV pool are in use, and by how many owners. A page has one owner more for every page table and every cache entry that
// names it; it is free again when the last lets go. Ids only: the bytes are kv_store.h's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvloom::replay {

class PageAllocator {
 public:
  explicit PageAllocator(int64_t pages);

  /// A free page with one owner, or -1. The page freed last comes first: memory that was never needed is never touched.
  int32_t allocate();
  /// One owner more / fewer of a page in use.
  void retain(int32_t page) { ++owners_[static_cast<size_t>(page)]; }
  void release(int32_t page);

  int32_t owners(int32_t page) const { return owners_[static_cast<size_t>(page)]; }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()) + total_pages() - fresh_; }
  int64_t total_pages() const { return static_cast<int64_t>(owners_.size()); }

 private:
  std::vector<int32_t> owners_;
  std::vector<int32_t> free_;  // pages that were in use before
  int64_t fresh_ = 0;          // pages [fresh_, total) never were
};

}  // namespace kvloom::replay
