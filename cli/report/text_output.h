// Files that commands write for an option of theirs: "--json FILE", "--timeline FILE".
#pragma once

#include <string>

namespace kvloom::cli {

/// Writes `text`; "-" is stdout. A file appears whole or not at all (temporary name, then rename). Throws Error(io) that names option, path and
/// reason: disk full, no such folder, not permitted.
void write_text(const char* option, const std::string& path, const std::string& text);

/// What can't be written is better known before the work than after it. Throws invalid_argument; "" and "-" pass.
void check_target(const char* option, const std::string& path);

}  // namespace kvloom::cli
