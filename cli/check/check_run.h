// Many random cases, and what came of them.
#pragma once

#include "cli/check/run_case.h"

#include <nlohmann/json.hpp>

#include <map>

namespace kvloom::check {

struct CheckOptions {
  int64_t cases = 1000;
  uint64_t seed = 1;
  int64_t only_index = -1;  // >= 0: this case alone
  CaseOptions of_a_case;
};

struct Failure {
  std::string command;  // one line that runs this case again, and only it
  std::string shape;    // describe(case)
  std::string fault;
};

struct CheckReport {
  int64_t cases = 0;
  int64_t failed = 0;
  int64_t runs = 0;
  int64_t sabotaged = 0;  // cases in which the sabotage found something to spoil
  double seconds = 0.0;
  bool interrupted = false;
  std::map<std::string, Errors> worst_by_output;  // "f32", "f16", "bf16"
  std::map<std::string, int64_t> coverage;        // feature -> cases
  std::map<std::string, int64_t> keys;            // kernel that ran -> cases
  std::vector<Failure> failures;                  // the first 100

  double worst_rel_error() const;
};

/// `seen` is called after every case with the report so far; false ends the run early.
CheckReport run_check(const CheckOptions& options, const std::function<bool(const CheckReport&)>& seen = {});

/// Case `index`: random, and on a GPU bent to its keys.
Case case_of(const CheckOptions& options, int64_t index);

/// The command line that runs case `index` of `options` again under `schedule`.
std::string command_of(const CheckOptions& options, int64_t index, const Schedule& schedule);

nlohmann::ordered_json to_json(const CheckOptions& options, const CheckReport& report);

}  // namespace kvloom::check
