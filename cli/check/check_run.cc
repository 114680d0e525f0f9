#include "cli/check/check_run.h"

#include "cli/check/coverage.h"
#include "cli/check/crash_note.h"
#include "cli/check/generate.h"
#include "cli/check/gpu_case.h"
#include "cli/check/user_case.h"
#include "kvloom/support/check.h"

#include <algorithm>
#include <chrono>

namespace kvloom::check {
namespace {

constexpr size_t kMostFailures = 100;

const char* backend_of(const CheckOptions& options) { return options.of_a_case.gpu ? "cuda" : "cpu"; }
std::string variant_of(const CheckOptions& options) {
  return options.of_a_case.user ? std::string(" --variant ") + options.of_a_case.user->file : "";
}

void keep_worst(Errors& worst, const Errors& e) {
  worst.whole = std::max(worst.whole, e.whole);
  worst.worst_row = std::max(worst.worst_row, e.worst_row);
  worst.worst_excess = std::max(worst.worst_excess, e.worst_excess);
  worst.worst_lse = std::max(worst.worst_lse, e.worst_lse);
}

}  // namespace

double CheckReport::worst_rel_error() const {
  double worst = 0.0;
  for (const auto& [type, e] : worst_by_output) worst = std::max(worst, e.whole);
  return worst;
}

Case case_of(const CheckOptions& options, int64_t index) {
  Case c = random_case(options.seed, index);
  if (options.of_a_case.gpu) bend_for_gpu(c, index, options.of_a_case.user != nullptr);
  bend_for_user(c, options.of_a_case.user);
  return c;
}

std::string command_of(const CheckOptions& options, int64_t index, const Schedule& schedule) {
  std::string line = fmt::format("kvloom check --backend {}{} --case {}:{} --policy {} --ctas {}", backend_of(options), variant_of(options),
                                 options.seed, index, name_of(schedule.policy), schedule.ctas);
  if (schedule.levels == LevelMode::off) line += " --levels off";
  if (!options.of_a_case.cpu_target.empty()) line += " --cpu-target " + options.of_a_case.cpu_target;
  if (!options.of_a_case.kernel.empty()) line += " --kernel " + options.of_a_case.kernel;
  if (options.of_a_case.sabotage != Sabotage::none) line += fmt::format(" --inject {}", word_of(options.of_a_case.sabotage));
  return line;
}

CheckReport run_check(const CheckOptions& options, const std::function<bool(const CheckReport&)>& seen) {
  CheckReport report;
  const auto start = std::chrono::steady_clock::now();
  const int64_t first = std::max<int64_t>(0, options.only_index);
  const int64_t end = options.only_index >= 0 ? first + 1 : options.cases;
  for (int64_t index = first; index < end; ++index) {
    const Case c = case_of(options, index);
    set_crash_note(fmt::format("kvloom check --backend {}{} --case {}:{}", backend_of(options), variant_of(options), options.seed, index));
    const CaseResult result = run_case(c, options.of_a_case);
    ++report.cases;
    report.runs += result.runs;
    report.sabotaged += result.sabotaged;
    ++report.keys[result.key];
    keep_worst(report.worst_by_output[name_of(c.spec.o_dtype)], result.errors);
    for (const std::string& feature : features_of(c)) ++report.coverage[feature];
    if (!result.errors.fault.empty()) {
      ++report.failed;
      if (report.failures.size() < kMostFailures) {
        report.failures.push_back({command_of(options, index, result.failed), describe(c), result.errors.fault});
      }
    }
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (seen && !seen(report)) {
      report.interrupted = index + 1 < end;
      break;
    }
  }
  set_crash_note("");
  return report;
}

nlohmann::ordered_json to_json(const CheckOptions& options, const CheckReport& report) {
  nlohmann::ordered_json j;
  j["backend"] = backend_of(options);
  if (options.of_a_case.user) j["variant"] = describe_variant(*options.of_a_case.user);
  j["seed"] = options.seed;
  j["cases"] = report.cases;
  j["failed"] = report.failed;
  j["worst_rel_error"] = report.worst_rel_error();
  j["runs"] = report.runs;
  j["seconds"] = report.seconds;
  j["interrupted"] = report.interrupted;
  if (options.of_a_case.sabotage != Sabotage::none) {
    j["inject"] = {{"fault", word_of(options.of_a_case.sabotage)}, {"cases_spoiled", report.sabotaged}};
  }
  for (const auto& [type, e] : report.worst_by_output) {
    j["worst_by_output"][type] = {
        {"rel_error", e.whole}, {"row_rel_error", e.worst_row}, {"row_beyond_rounding", e.worst_excess}, {"lse_error", e.worst_lse}};
  }
  j["failures"] = nlohmann::ordered_json::array();
  for (const Failure& f : report.failures) j["failures"].push_back({{"command", f.command}, {"shape", f.shape}, {"fault", f.fault}});
  for (const auto& [key, count] : report.keys) j["kernels"][key] = count;
  for (const auto& [feature, count] : report.coverage) j["coverage"][feature] = count;
  return j;
}

}  // namespace kvloom::check
