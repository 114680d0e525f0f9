// Files of the source tree that tests read: from the current folder if it is the tree's (a program that was carried to another machine), else
// from where the program was built.
#pragma once

#include <filesystem>
#include <string>

namespace kvloom::test {

inline std::string source_file(const std::string& path) {
  return std::filesystem::exists(path) ? path : std::string(KVLOOM_SOURCE_DIR "/") + path;
}

}  // namespace kvloom::test
