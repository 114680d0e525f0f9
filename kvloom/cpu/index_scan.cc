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

IndexScan scan_index(IndexView ids, int64_t begin, int64_t end) {
  static const IndexScanner scan = index_scanner(best_target());
  const int64_t size = ids.is_64 ? 8 : 4;
  IndexScan found = scan(static_cast<const char*>(ids.data) + begin * size, ids.is_64, end - begin);
  if (found.first >= 0) found.first += begin;
  return found;
}

}  // namespace kvloom::cpu
