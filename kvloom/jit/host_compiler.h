// The C++ compiler of this machine, for the CPU's part of users' variants: KVLOOM_CXX, else c++, g++ or clang++ on the PATH.
#pragma once

#include <string>
#include <vector>

namespace kvloom::jit {

class HostCompiler {
 public:
  /// The compiler of this process's environment; nullptr if there is none: `why` says where was looked and the remedy.
  static const HostCompiler* find(std::string& why);

  const std::string& path() const { return path_; }
  /// "g++ 12.2.0": part of a cache entry's name.
  const std::string& version() const { return version_; }

  /// Compiles `text` to a shared object and gives its bytes. False: `log` has the compiler's words, whole; or the folder for its files is
  /// at fault, not the text: `folder_fault` says so, with the remedy.
  bool compile(const std::string& text, const std::vector<std::string>& options, std::string& object, std::string& log,
               std::string& folder_fault) const;

 private:
  static HostCompiler* search(const std::string& asked, std::string& why);
  std::string path_;
  std::string version_;
};

}  // namespace kvloom::jit
