// A progress bar on stderr, only where somebody watches: not into files, pipes or logs.
#pragma once

#include <chrono>
#include <string>

namespace kvloom::cli {

class Progress {
 public:
  /// Draws only if stderr is a terminal.
  Progress();
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `share` in [0, 1] and a few words beside the bar. Redraws at most ten times a second.
  void update(double share, const std::string& text);
  /// Wipes the bar: what follows starts on a clean line.
  void clear();

 private:
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace kvloom::cli
