// The largest of many page ids, where it stands, and whether one is negative: what stands between a page table and a kernel that trusts it. Read once a
// step, so it has to go as fast as memory does.
#pragma once

#include "kvloom/contract/index_view.h"
#include "kvloom/cpu/target.h"

namespace kvloom::cpu {

struct IndexScan {
  int64_t high = -1;      // the largest; -1 if none is above
  int64_t first = -1;     // its first place, if there is one
  bool negative = false;  // some are below 0
};

/// Of ids[begin, end), by the best instructions of this machine; `first` counts from ids[0].
IndexScan scan_index(IndexView ids, int64_t begin, int64_t end);

/// The loop of one target: n ids at `ids`, of 8 bytes if is_64.
using IndexScanner = IndexScan (*)(const void* ids, bool is_64, int64_t n);
namespace portable {
IndexScan scan_index(const void* ids, bool is_64, int64_t n);
}
namespace avx2 {
IndexScan scan_index(const void* ids, bool is_64, int64_t n);
}
namespace avx512 {
IndexScan scan_index(const void* ids, bool is_64, int64_t n);
}
IndexScanner index_scanner(Target target);

}  // namespace kvloom::cpu
