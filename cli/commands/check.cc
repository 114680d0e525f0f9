// kvloom check: random cases over the whole input space against REF.
#include "kvloom/api/kernels.h"
#include "kvloom/support/check.h"
#include "cli/check/case_json.h"
#include "cli/check/check_run.h"
#include "cli/check/crash_note.h"
#include "cli/check/generate.h"
#include "cli/check/gpu_case.h"
#include "cli/command.h"
#include "cli/policy_name.h"
#include "cli/report/json_output.h"
#include "cli/report/machine.h"
#include "kvloom/cpu/target.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>

namespace kvloom::cli {
namespace {

struct Arguments {
  std::string backend = "cpu", json, one_case, policy, levels, target, kernel, inject, variant;
  int64_t cases = 1000;
  uint64_t seed = 1;
  int32_t ctas = 0, device = 0, timeout = 60;
  bool print_case = false, print_keys = false;
};

volatile std::sig_atomic_t stop_asked = 0;
void on_interrupt(int) { stop_asked = 1; }

/// "SEED:INDEX"
void parse_case(const std::string& text, check::CheckOptions& options) {
  unsigned long long seed = 0;
  long long index = -1;
  char rest = 0;
  errno = 0;
  const bool whole = text.find('-') == std::string::npos && std::sscanf(text.c_str(), "%llu:%lld%c", &seed, &index, &rest) == 2 && errno == 0;
  if (!whole || index < 0 || index == INT64_MAX) {
    throw CLI::ValidationError("--case", "got " + text + ", wanted SEED:INDEX, as a failure prints it");
  }
  options.seed = seed;
  options.only_index = index;
}

/// Refuses a place where no case could run: one error, not one a case.
void check_place(const Arguments& a) {
  if (a.backend == "cuda") {
    gpu_at(a.device, "check");
    return;
  }
  cpu::Target target{};
  if (a.target.empty()) cpu::best_target();  // throws where KVLOOM_CPU_TARGET is none
  require(a.target.empty() || (cpu::parse_target(a.target.c_str(), target) && cpu::is_available(target)),
          "check: --cpu-target: got {}, wanted one that runs here; kvloom doctor says which do", a.target);
}

check::CheckOptions options_of(const Arguments& a) {
  if (a.ctas > 65535) throw CLI::ValidationError("--ctas", "got " + std::to_string(a.ctas) + ", wanted 1 .. 65535");
  check::CheckOptions options;
  options.cases = a.cases;
  options.seed = a.seed;
  if (!a.one_case.empty()) parse_case(a.one_case, options);
  options.of_a_case.cpu_target = a.target;
  options.of_a_case.kernel = a.kernel;
  options.of_a_case.gpu = a.backend == "cuda";
  options.of_a_case.device = a.device;
  if (!a.variant.empty()) options.of_a_case.user = variant_from_file(a.variant);
  if (!a.inject.empty()) options.of_a_case.sabotage = check::parse_sabotage(a.inject);
  if (a.policy.empty() && a.ctas == 0 && a.levels.empty()) return options;
  for (const check::Schedule& s : check::all_schedules(check::Case())) {  // the schedules that the arguments leave
    check::Schedule left = s;
    if (!a.policy.empty() && s.policy != parse_policy(a.policy)) continue;
    if (a.ctas > 0) left.ctas = a.ctas;
    if (a.levels == "off") left.levels = LevelMode::off;
    options.of_a_case.schedules.push_back(left);
    if (a.ctas > 0 && !a.policy.empty()) break;
  }
  return options;
}

void print_progress(const check::CheckReport& r, int64_t cases) {
  std::fprintf(stderr, "\rcheck: %lld of %lld cases, %lld failed, worst error %.2e ", static_cast<long long>(r.cases),
               static_cast<long long>(cases), static_cast<long long>(r.failed), r.worst_rel_error());
}

void print_report(const check::CheckOptions& options, const check::CheckReport& r, FILE* out) {
  for (const check::Failure& f : r.failures) {
    std::fprintf(out, "FAILED %s\n  %s\n  reproduce: %s\n", f.shape.c_str(), f.fault.c_str(), f.command.c_str());
  }
  if (options.of_a_case.user) std::fprintf(out, "variant %s\n", describe_variant(*options.of_a_case.user).c_str());
  std::fprintf(out, "%lld cases (%lld runs) in %.1f s: %lld failed\n", static_cast<long long>(r.cases), static_cast<long long>(r.runs),
               r.seconds, static_cast<long long>(r.failed));
  for (const auto& [type, e] : r.worst_by_output) {
    std::fprintf(out, "  output %-5s relative error %.2e whole, %.2e worst row, %.1e beyond the output's rounding; lse %.1e\n",
                 type.c_str(), e.whole, e.worst_row, e.worst_excess, e.worst_lse);
  }
  if (options.of_a_case.sabotage != check::Sabotage::none) {
    std::fprintf(out, "  %s was injected into %lld cases\n", check::word_of(options.of_a_case.sabotage),
                 static_cast<long long>(r.sabotaged));
  }
  if (r.interrupted) std::fprintf(out, "  interrupted: the rest was not run\n");
}

int run(const Arguments& a) {
  if (a.print_keys) {
    for (const std::string& key : check::gpu_check_keys()) std::printf("%s\n", key.c_str());
    return 0;
  }
  check::CheckOptions options = options_of(a);
  if (a.print_case) {
    if (options.only_index < 0) throw CLI::ValidationError("--print-case", "got no --case, wanted the case to print");
    std::printf("%s\n", check::case_to_json(check::case_of(options, options.only_index)).dump(1).c_str());
    return 0;
  }
  check_place(a);
  check::install_crash_note();
  std::unique_ptr<check::Watchdog> watchdog;
  if (options.of_a_case.gpu) watchdog = std::make_unique<check::Watchdog>(std::chrono::seconds(a.timeout));
  options.of_a_case.watchdog = watchdog.get();
  std::signal(SIGINT, on_interrupt);
  const bool progress = isatty(STDERR_FILENO) && options.only_index < 0;
  const check::CheckReport report = check::run_check(options, [&](const check::CheckReport& so_far) {
    if (progress) print_progress(so_far, options.cases);
    return stop_asked == 0;
  });
  if (progress) std::fprintf(stderr, "\r\033[K");
  std::signal(SIGINT, SIG_DFL);
  print_report(options, report, a.json == "-" ? stderr : stdout);
  if (!a.json.empty()) {
    nlohmann::ordered_json out = check::to_json(options, report);
    out["machine"] = to_json(this_machine());
    if (options.of_a_case.gpu) out["gpu"] = to_json(gpu_at(a.device, "check"));
    write_json(a.json, out);
  }
  return report.failed > 0 ? 1 : report.interrupted ? 130 : 0;
}

void add(CLI::App& command, int& exit_code) {
  auto a = std::make_shared<Arguments>();
  command.add_option("--backend", a->backend, "cpu, cuda")->check(one_of({"cpu", "cuda"}))->capture_default_str();
  command.add_option("--device", a->device, "cuda: which GPU")->check(kNonNegative)->capture_default_str();
  command.add_option("--timeout", a->timeout, "cuda: seconds after which a run counts as hanging")->check(kPositive)->capture_default_str();
  command.add_flag("--print-keys", a->print_keys, "Print the GPU kernels that cases are made for, one a line, and stop");
  command.add_option("--cases", a->cases, "Random cases to run, each under all policies with 1, 7 and 132 CTAs")
      ->check(kNonNegative)
      ->capture_default_str();
  command.add_option("--seed", a->seed, "The cases are a function of this number")->check(kNonNegative)->capture_default_str();
  command.add_option("--case", a->one_case, "SEED:INDEX: this case alone");
  command.add_option("--policy", a->policy, "Only this policy: " + policy_names());
  command.add_option("--ctas", a->ctas, "Only with this many CTAs")->check(kPositive);
  command.add_option("--levels", a->levels, "auto; off: shared prefixes are not looked for")->check(one_of({"auto", "off"}));
  command.add_option("--cpu-target,--target", a->target, "cpu: avx512, avx2 or portable; default: the best of this machine")
      ->check(one_of(cpu_target_names()));
  command.add_option("--kernel", a->kernel, "cuda: this family of kernels; default: the case's own")->check(one_of(gpu_family_names()));
  command.add_option("--variant", a->variant, "A variant of your own (docs/variants.md): every case has it")->type_name("FILE");
  command.add_option("--inject", a->inject, "A deliberate fault that the check must find: drop-item, swap-merge, window-off-by-one, ...")
      ->check(one_of(check::sabotage_words()));
  command.add_flag("--print-case", a->print_case, "Print the --case as JSON and stop");
  command.add_option("--json", a->json, "Write the report to this file, - for stdout")->type_name("FILE");
  command.callback([a, &exit_code] { exit_code = run(*a); });
}

const RegisterCommand registered({"check", "Run random cases against the reference, under every schedule", add});

}  // namespace
}  // namespace kvloom::cli
