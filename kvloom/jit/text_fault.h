// What can be said of a user's text before a compiler sees it.
#pragma once

#include <string>
#include <string_view>

namespace kvloom::jit {

/// `text` without the mark of UTF-8 that some editors begin a file with: a GPU's compiler takes none.
std::string_view without_mark(std::string_view text);

/// What is wrong with a user's text before a compiler need see it; "" if nothing is.
std::string text_fault(const std::string& text);

/// The name in KVLOOM_VARIANT(...): "" if there is none.
std::string name_in(const std::string& text);

}  // namespace kvloom::jit
