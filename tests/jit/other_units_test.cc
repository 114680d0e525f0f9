// The kernels that are not attention compile for every generation, without a GPU, and hardly spill.
#include "cli/bench/gpu_ceilings.h"
#include "cli/bench/gpu_products.h"
#include "cli/replay/gpu_machine.h"
#include "kvloom/api/kernels.h"
#include "kvloom/jit/compile.h"
#include "kvloom/jit/unit.h"
#include "tests/jit/nvrtc_here.h"

namespace kvloom::jit {
namespace {

void expect_compiles(const Program& program, const std::vector<const char*>& entries) {
  for (const char* arch : {"sm_80", "sm_90a"}) {
    std::string log;
    const std::string cubin = compile_program(program, arch, log);
    EXPECT_FALSE(cubin.empty());
    EXPECT_EQ(log.find("warning"), std::string::npos) << program.key << ", " << arch << ":\n" << log;
    for (const char* entry : entries) EXPECT_NE(log.find(entry), std::string::npos) << entry << ":\n" << log;
    for (size_t at = log.find(" bytes spill stores"); at != std::string::npos; at = log.find(" bytes spill stores", at + 1)) {
      const size_t number = log.rfind(' ', at - 1) + 1;
      EXPECT_LE(std::stoi(log.substr(number, at - number)), 8) << program.key << ", " << arch << ":\n" << log;
    }
  }
}

TEST(OtherUnits, AroundAttention) {
  NEED_NVRTC();
  expect_compiles(ops_program(), {"append_kv", "apply_rope", "merge_states"});
}

TEST(OtherUnits, Planner) {
  NEED_NVRTC();
  expect_compiles(plan_program(), {"plan_stream"});
}

TEST(OtherUnits, AreKeysOfTheCacheToo) {
  EXPECT_EQ(kernel_source("plan.stream", "sm_90a"), plan_program().text);
  EXPECT_EQ(kernel_source("ops.any", "sm_80"), ops_program().text);
  NEED_NVRTC();
  for (const char* arch : {"sm_80", "sm_90a", "sm_100a"}) {
    const std::vector<KernelResources> list = kernel_resources("plan.stream", arch);
    ASSERT_EQ(list.size(), 1u);
    EXPECT_EQ(list[0].entry, "plan_stream");
    EXPECT_GT(list[0].registers, 0);
  }
}

TEST(OtherUnits, OfAReplay) {
  NEED_NVRTC();
  expect_compiles({"replay.kernels", replay::kGpuKernels}, {"page_events", "fill_rows", "count_nonfinite", "hold", "gather_rows"});
}

TEST(OtherUnits, OfABenchmark) {
  NEED_NVRTC();
  expect_compiles({"bench.products", cli::kGpuProductsText}, {"products"});
  expect_compiles({"bench.read", cli::kGpuReadText}, {"sweep"});
  expect_compiles({"bench.clock", cli::kGpuClockText}, {"read_clock"});
}

}  // namespace
}  // namespace kvloom::jit
