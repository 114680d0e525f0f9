// Step shapes as JSONL, for scheduler studies without the traffic: one line a step,
//   {"step": 3, "time_us": 1234.5, "page_size": 16, "q_len": [1, 512], "kv_len": [900, 1024], "shared_with": [-1, 0], "shared_tokens": [0,
//   768]}
// Request i of the step begins with the same shared_tokens[i] tokens, in the same pages, as the earlier request shared_with[i] (-1: none).
#pragma once

#include "cli/replay/batcher.h"

#include <cstdio>
#include <string>
#include <unordered_map>

namespace kvloom::replay {

class StepExport {
 public:
  /// Throws Error(io) that names the file.
  explicit StepExport(const std::string& path);
  ~StepExport();
  StepExport(const StepExport&) = delete;
  StepExport& operator=(const StepExport&) = delete;

  void write(int64_t step_number, int64_t now_ns, const Batcher& batcher, const Step& step, int32_t page_size);
  /// Everything written is with the operating system; throws Error(io) if it is not.
  void close();

 private:
  void check(bool ok) const;

  std::string path_;
  std::FILE* file_;
  std::unordered_map<int32_t, int32_t> owner_;  // page -> the first request of the step that has it
};

}  // namespace kvloom::replay
