// The largest of many page ids, where it stands, and whether one is negative: what stands between a page table and a kernel that trusts it. Read once a
// step, so it has to go as fast as memory does, for tables of a hundred short rows, too.
#pragma once

#include "kvloom/contract/index_view.h"
#include "kvloom/cpu/target.h"

namespace kvloom::cpu {

struct IndexScan {
  int64_t high = -1;      // the largest; -1 if none is above
  int64_t first = -1;     // its first place, if there is one
  bool negative = false;  // some are below 0
};

/// Ids [begin, end).
struct IndexRange {
  int64_t begin, end;
};
/// The longest range that a scan takes: where the largest id stands is looked for one by one, in its range.
inline constexpr int64_t kMaxScanRange = 1024;

/// Goes on with `found` over `count` ranges of ids, by the best instructions of this machine. `first` counts from ids[0]; of equal ids it is the one that
/// came first, in the order of ranges.
void scan_index(IndexView ids, const IndexRange* ranges, int count, IndexScan& found);

/// The loop of one target: ids of 8 bytes if is_64.
using IndexScanner = void (*)(const void* ids, bool is_64, const IndexRange* ranges, int count, IndexScan& found);
namespace portable {
void scan_index(const void* ids, bool is_64, const IndexRange* ranges, int count, IndexScan& found);
}
namespace avx2 {
void scan_index(const void* ids, bool is_64, const IndexRange* ranges, int count, IndexScan& found);
}
namespace avx512 {
void scan_index(const void* ids, bool is_64, const IndexRange* ranges, int count, IndexScan& found);
}
IndexScanner index_scanner(Target target);

}  // namespace kvloom::cpu
