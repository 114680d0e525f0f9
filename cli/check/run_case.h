// One case on the engine, under every schedule, against REF.
#pragma once

#include "cli/check/compare.h"
#include "cli/check/materialise.h"
#include "cli/check/sabotage.h"
#include "cli/check/watchdog.h"

#include <functional>

namespace kvloom::check {

/// How a case is scheduled.
struct Schedule {
  Policy policy = Policy::automatic;
  int32_t ctas = 132;
  LevelMode levels = LevelMode::automatic;
};

/// All policies with 1, 7 and 132 CTAs; where prefixes are shared, `automatic` and `stream` without levels too.
std::vector<Schedule> all_schedules(const Case& c);

struct CaseOptions {
  std::vector<Schedule> schedules;  // empty: all_schedules()
  std::string cpu_target;           // "": the best of this machine
  std::string kernel;               // GPU: this family; "": the case's own, else the fastest
  Sabotage sabotage = Sabotage::none;
  bool gpu = false;  // on GPU `device`, in its memory
  int32_t device = 0;
  Watchdog* watchdog = nullptr;  // GPU: armed around every run
  const UserVariant* user = nullptr;  // what random cases are bent to
};

struct CaseResult {
  Errors errors;    // worst over all schedules; errors.fault is of the first that failed
  Schedule failed;  // the schedule that gave the fault
  std::string key;  // of the kernel that ran
  int64_t runs = 0;
  bool sabotaged = false;  // the sabotage found something to spoil
};

/// Per schedule: the plan is proved sound (plan/validate.h) and comes out the same twice; the output is written wholly and nowhere else; it
/// agrees with REF; a second run, a second engine and (CPU) two threads give the same bits. Workspaces start as 0xFF and are handed on
/// dirty. Stops at the first fault.
CaseResult run_case(const Case& c, const CaseOptions& options = {});
/// The same with tensors that the caller has changed.
CaseResult run_data(CaseData& data, const CaseOptions& options = {});

}  // namespace kvloom::check
