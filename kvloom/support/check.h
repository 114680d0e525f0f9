// Refusals in one spelling. Not a public header: it brings fmt.
#pragma once

#include "kvloom/support/error.h"
#include "kvloom/support/format.h"

namespace kvloom {

/// Throws Error(code) with a formatted message.
template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format_string, Args&&... args) {
  throw Error(code, format_erased(format_string, fmt::make_format_args(args...)));
}

/// Throws invalid_argument unless `ok`. Message: "where: what: got X, wanted Y; remedy".
template <class... Args>
void require(bool ok, fmt::format_string<Args...> format_string, Args&&... args) {
  if (!ok) [[unlikely]] fail(ErrorCode::invalid_argument, format_string, std::forward<Args>(args)...);
}

}  // namespace kvloom
