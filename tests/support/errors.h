// What a refusal says.
#pragma once

#include "kvloom/support/error.h"

#include <gtest/gtest.h>

#include <string>

namespace kvloom::test {

/// The words of the error that f() throws, which must have this code; "" and a failure if there is none.
template <class F>
std::string error_of(F&& f, ErrorCode code = ErrorCode::invalid_argument) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(int(e.code()), int(code)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace kvloom::test
