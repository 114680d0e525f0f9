// NVRTC, the run-time compiler, opened at run time: from KVLOOM_NVRTC, the loader's path, a CUDA toolkit, or the Python packages that
// frameworks bring along. Versions 12 and 13.
#pragma once

#include "kvloom/base/span.h"
#include "kvloom/jit/sources.h"

#include <string>
#include <vector>

namespace kvloom::jit {

/// What a compilation gave.
struct Compiled {
  bool ok = false;
  std::string cubin;
  std::string log;  // the compiler's words, whole; warnings too
};

class Nvrtc {
 public:
  /// The compiler of this process, found once; nullptr if there is none: `why` says where was looked and the remedy.
  static const Nvrtc* find(std::string& why);

  const std::string& path() const { return path_; }
  /// "nvrtc 13.0": part of a cache entry's name.
  std::string version() const;
  /// Architectures it compiles for: 75, 80, 90, ...
  const std::vector<int>& archs() const { return archs_; }

  /// Compiles `text`, called `name` in messages, with `headers` under the names they are included by. Nothing is read from disk.
  Compiled compile(const std::string& text, const std::string& name, Span<const SourceText> headers,
                   const std::vector<std::string>& options) const;

 private:
  struct Entries;
  bool open(const std::string& path, std::string& why);
  static const Nvrtc* search(std::string& why);

  std::string path_;
  int major_ = 0, minor_ = 0;
  std::vector<int> archs_;
  const Entries* entries_ = nullptr;
};

}  // namespace kvloom::jit
