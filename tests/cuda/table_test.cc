// The tables of cases (tests/cases: features, and what once broke other engines) on a GPU, each under every schedule: GpuTable.*/B05_... is
// the entry of the bug log. fp32 cases become bf16; a shape that no GPU kernel runs must be refused for its head dims.
#include "cli/check/case_json.h"
#include "cli/check/gpu_case.h"
#include "cli/check/run_case.h"
#include "kvloom/runtime/device.h"
#include "kvloom/runtime/registry.h"
#include "kvloom/runtime/sm90.h"
#include "tests/cuda/engine_fixture.h"
#include "tests/support/source_file.h"

namespace kvloom::test {
namespace {

std::vector<check::Case> read_tables() {
  std::vector<check::Case> all;
  for (const char* file : {"bugs.json", "cases.json"}) {
    for (check::Case& c : check::read_cases(source_file(std::string("tests/cases/") + file))) {
      check::put_on_gpu(c);
      all.push_back(std::move(c));
    }
  }
  return all;
}

const std::vector<check::Case>& table() {
  static const std::vector<check::Case> cases = read_tables();
  return cases;
}

/// Why no GPU kernel runs `spec`; "" if one does.
std::string refusal_of(const AttentionSpec& spec) {
  try {
    runtime::choose_attend(spec, {Backend::cuda, nullptr, 0, nullptr, nullptr, false});
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

/// The head dims that family sm80 says it runs.
bool has_kernel(int32_t qk, int32_t vo) {
  const auto runs = [](int32_t dim) { return dim % 16 == 0 && dim <= 256; };
  return (runs(qk) && runs(vo)) || ((qk == 512 || qk == 576) && vo == 512);
}

class GpuTable : public GpuEngine, public testing::WithParamInterface<size_t> {};

TEST_P(GpuTable, AgreesWithRefUnderEverySchedule) {
  const check::Case& c = table()[GetParam()];
  const std::string refusal = refusal_of(c.spec);
  if (!refusal.empty()) {
    EXPECT_TRUE(has(refusal, "head dim")) << refusal;
    EXPECT_FALSE(has_kernel(c.spec.head_dim_qk, c.spec.head_dim_vo)) << refusal;
    return;
  }
  gpu.add_kernel(c.spec);
  gpu.add_kernel(c.spec, true);
  gpu.set_spec(&c.spec);
  check::CaseOptions options;
  options.gpu = true;
  if (gpu.is_fake()) options.schedules = {{Policy::automatic, 7, LevelMode::automatic}, {Policy::fixed_split, 132, LevelMode::automatic}};
  // Both families where both have a kernel.
  const bool both = runtime::sm90_refusal(c.spec, runtime::Device::get(0).target(), false).empty();
  for (const char* kernel : {"sm80", "sm90"}) {
    if (kernel == std::string("sm90") && !both) continue;
    options.kernel = kernel;
    const check::CaseResult r = check::run_case(c, options);
    EXPECT_EQ(r.errors.fault, "") << r.key << ": " << check::describe(c) << ", policy " << name_of(r.failed.policy) << ", " << r.failed.ctas << " CTAs";
    EXPECT_GT(r.runs, 0);
  }
  gpu.set_spec(nullptr);
}

INSTANTIATE_TEST_SUITE_P(All, GpuTable, testing::Range<size_t>(0, table().size()), [](const auto& info) {
  std::string name = table()[info.param].name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

TEST(GpuTables, MostCasesHaveAKernel) {
  size_t skipped = 0;
  for (const check::Case& c : table()) skipped += !refusal_of(c.spec).empty();
  EXPECT_LT(skipped * 8, table().size());
}

}  // namespace
}  // namespace kvloom::test
