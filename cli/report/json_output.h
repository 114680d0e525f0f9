// --json FILE, on every command: "-" is stdout.
#pragma once

#include <nlohmann/json.hpp>

#include <string>

namespace kvloom::cli {

/// Writes `value`, indented, with a final newline. A file appears whole or not at all (temporary name, then rename).
/// Throws Error(io) that names the path and the reason: disk full, no such folder, not permitted.
void write_json(const std::string& path, const nlohmann::ordered_json& value);

}  // namespace kvloom::cli
