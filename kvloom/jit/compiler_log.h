// A compiler's log, without what only speaks of the library's own lines.
#pragma once

#include <string>

namespace kvloom::jit {

/// `log` of g++ or clang++ about a user's text between the library's headers: the user's lines, and the sentences of static assertions. Where nothing is
/// wrong in the user's own lines the library's errors stay, without their notes.
std::string plain_log(const std::string& log);

}  // namespace kvloom::jit
