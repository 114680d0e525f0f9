// What other engines took for rows of ours, as benchmarks/peers/torch_cuda.py writes it: joined into the results of a run, so that a page
// shows both.
#pragma once

#include "cli/bench/gpu_shapes.h"

#include <nlohmann/json.hpp>

#include <string>

namespace kvloom::cli {

class PeerResults {
 public:
  /// Throws io or invalid_argument: a file that can't be read, is none, or was measured on another GPU than `gpu`.
  PeerResults(const std::string& path, const std::string& gpu);

  /// Their versions and protocol, and who was not installed.
  nlohmann::ordered_json facts() const;
  /// A list of figures and refusals; empty: the file does not have this row. Throws invalid_argument if it is another row of this name.
  nlohmann::ordered_json of(const GpuShape& shape) const;

 private:
  std::string path_;
  nlohmann::ordered_json file_;
};

}  // namespace kvloom::cli
