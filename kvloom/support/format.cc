// The one file of the library that compiles fmt's formatting code, header-only, so that programs that link kvloom need no fmt.
#define FMT_HEADER_ONLY 1
#include "kvloom/support/format.h"

#include <fmt/format.h>

namespace kvloom {

std::string format_erased(fmt::string_view format, fmt::format_args args) { return fmt::vformat(format, args); }

}  // namespace kvloom
