// Other programs, run and waited for.
#pragma once

#include <string>
#include <vector>

namespace kvloom {

struct ProcessResult {
  bool started = false;
  int status = -1;     // exit status; 128 + the signal that ended it
  std::string output;  // stdout and stderr, as they came; not started: the reason
};

/// Runs `words[0]` (a path) with the other words as its arguments, without input.
ProcessResult run_process(const std::vector<std::string>& words);

/// The path of a program: `name` itself if it has a '/', else the first of that name on the PATH. "": there is none that can be run.
std::string find_program(const std::string& name);

}  // namespace kvloom
