#include "kvloom/cpu/index_scan.h"

namespace kvloom::cpu {

IndexScanner index_scanner(Target target) {
  switch (target) {
    case Target::avx512:
      return avx512::scan_index;
    case Target::avx2:
      return avx2::scan_index;
    case Target::portable:
      break;
  }
  return portable::scan_index;
}

void scan_index(IndexView ids, const IndexRange* ranges, int count, IndexScan& found) {
  static const IndexScanner scan = index_scanner(best_target());
  scan(ids.data, ids.is_64, ranges, count, found);
}

}  // namespace kvloom::cpu
