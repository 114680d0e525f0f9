#include "kvloom/cpu/element_rows.h"

namespace kvloom::cpu {

const ElementRows& element_rows(Target target) {
  switch (target) {
    case Target::avx512:
      return avx512::kElementRows;
    case Target::avx2:
      return avx2::kElementRows;
    case Target::portable:
      break;
  }
  return portable::kElementRows;
}

}  // namespace kvloom::cpu
