// The one exception type. An error names what is wrong, where, what was got, what was wanted, and the remedy.
#pragma once

#include <exception>
#include <string>

namespace kvloom {

/// The C ABI returns these values (kvloom.h keeps the same numbers).
enum class ErrorCode : int {
  invalid_argument = 1,   // a value, shape, dtype or pointer that can never work
  over_capacity = 2,      // valid, but larger than the engine was made for
  unsupported = 3,        // no kernel for this combination
  out_of_memory = 4,
  io = 5,                 // file or device of the operating system
  mismatch = 6,           // a plan, spec or workspace of another engine or step
  internal = 7,           // a bug of ours
};

class Error : public std::exception {
 public:
  /// `message` is one line, "where: what: got X, wanted Y; remedy"; where no kernel runs a spec, a line more for each kernel.
  Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
  std::string message_;
};

}  // namespace kvloom
