// `kvloom check --backend cuda` without a GPU: cases are bent to the keys, copied, run under every schedule and brought back. The fake
// driver's arithmetic is the CPU's, so what fails here is a copy, an address, an order or the host side of the backend.
#include "cli/check/check_run.h"
#include "cli/check/gpu_case.h"
#include "cli/check/run_case.h"
#include "kvloom/contract/kernel_key.h"
#include "kvloom/runtime/registry.h"
#include "tests/cuda/fake_gpu.h"

#include <cstdlib>
#include <gtest/gtest.h>

#include <set>

namespace kvloom::test {
namespace {

check::CheckOptions gpu_options() {
  check::CheckOptions o;
  o.of_a_case.gpu = true;
  return o;
}

/// A case on the fake GPU, which has its kernels.
check::CaseResult run_on_fake_gpu(const check::Case& c, const check::CheckOptions& options) {
  FakeGpu& gpu = FakeGpu::get();
  gpu.add_kernel(c.spec);
  gpu.add_kernel(c.spec, true);
  gpu.set_spec(&c.spec);
  const check::CaseResult r = check::run_case(c, options.of_a_case);
  gpu.set_spec(nullptr);
  return r;
}

TEST(CudaCheck, RandomCasesUnderEverySchedule) {
  const check::CheckOptions options = gpu_options();
  const char* const cases = std::getenv("KVLOOM_TEST_CASES");  // more of them, on an emulated GPU (lab/sm90)
  for (int64_t i = 0; i < (cases != nullptr ? std::atoi(cases) : 24); ++i) {
    const check::Case c = check::case_of(options, i);
    const check::CaseResult r = run_on_fake_gpu(c, options);
    EXPECT_EQ(r.errors.fault, "") << i << ": " << check::describe(c);
    EXPECT_EQ(r.key.rfind("attend.sm", 0), 0u) << r.key;
    EXPECT_GE(r.runs, 40);
  }
}

// A dropped work item must be found on this path too.
TEST(CudaCheck, SabotageIsFound) {
  check::CheckOptions options = gpu_options();
  options.of_a_case.sabotage = check::parse_sabotage("drop-item");
  int spoiled = 0, found = 0;
  for (int64_t i = 0; i < 12; ++i) {
    const check::CaseResult r = run_on_fake_gpu(check::case_of(options, i), options);
    spoiled += r.sabotaged;
    found += r.sabotaged && !r.errors.fault.empty();
  }
  EXPECT_GT(spoiled, 6);
  EXPECT_EQ(found, spoiled);
}

TEST(CudaCheck, EveryKeyIsAskedForAndNoOther) {
  const std::vector<std::string> list = check::gpu_check_keys();
  const std::set<std::string> keys(list.begin(), list.end());
  std::set<std::string> units;
  for (int64_t i = 0; i < 1000; ++i) {
    const check::Case c = check::case_of(gpu_options(), i);
    for (const bool fixed_split : {false, true}) {
      const std::string family = check::family_under(fixed_split, c.kernel, c.spec);
      const runtime::Choice choice = runtime::choose_attend(c.spec, {Backend::cuda, nullptr, -1, "sm_90a", family.empty() ? nullptr : family.c_str(), fixed_split});
      EXPECT_TRUE(keys.contains(choice.unit.key)) << choice.unit.key;
      units.insert(choice.unit.key);
    }
  }
  for (const std::string& key : keys) EXPECT_TRUE(units.contains(key)) << key;
}

}  // namespace
}  // namespace kvloom::test
