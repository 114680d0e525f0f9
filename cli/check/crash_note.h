// If a kernel crashes the process, say which case it was.
#pragma once

#include <string>

namespace kvloom::check {

/// Prints the note on stderr if the process dies of a fault (segmentation, bus, arithmetic, abort). Not under sanitizers, which report
/// more themselves.
void install_crash_note();
void set_crash_note(const std::string& command);

}  // namespace kvloom::check
