// `kvloom bench --steps` and `--constants` on the fake driver, where everything takes a millisecond.
#include "cli/bench/gpu_constants.h"
#include "cli/bench/gpu_rows.h"
#include "cli/bench/gpu_steps.h"
#include "cli/bench/shape_tables.h"
#include "cli/bench/steps_run.h"
#include "tests/cuda/engine_fixture.h"
#include "tests/support/temporary_folder.h"

#include <fstream>

namespace kvloom::cli {
namespace {

using test::FakeGpu;
using test::TemporaryFolder;

AttentionSpec layer() {
  AttentionSpec s;
  s.num_qo_heads = 4;
  s.num_kv_heads = 2;
  s.head_dim_qk = s.head_dim_vo = 64;
  s.q_dtype = s.kv_dtype = s.o_dtype = DType::bf16;
  s.variant.range.causal = true;
  return s;
}

constexpr const char* kSteps =
    R"({"step": 3, "time_us": 1.5, "page_size": 16, "q_len": [1, 1, 1], "kv_len": [70, 90, 65], "shared_with": [-1, 0, 0], "shared_tokens": [0, 64, 64], "weight": 10}
{"step": 7, "time_us": 2.5, "page_size": 16, "q_len": [1, 33], "kv_len": [71, 33], "shared_with": [-1, -1], "shared_tokens": [0, 0]}
)";

class CudaBenchSteps : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(gpu.is_fake());
    gpu.reset();
    for (const jit::Program& p : {jit::Program{"bench.clock", kGpuClockText}}) gpu.add_program(p);
    gpu.add_kernel(layer());
    gpu.add_kernel(layer(), true);
  }
  std::vector<TraceStep> steps(const std::string& text = kSteps) {
    std::ofstream(path()) << text;
    return read_steps(path(), layer());
  }
  std::string path() const { return folder_.path() + "/steps.jsonl"; }
  FakeGpu& gpu = FakeGpu::get();

 private:
  TemporaryFolder folder_;
};

TEST_F(CudaBenchSteps, AFileOfStepsBecomesShapes) {
  const std::vector<TraceStep> list = steps();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].shape.name, "step-3-decode");
  EXPECT_EQ(list[0].weight, 10.0);
  EXPECT_EQ(list[1].shape.name, "step-7-mixed");
  EXPECT_EQ(list[1].weight, 1.0);
  EXPECT_EQ(shared_part(list[0].shape, 2).with, 0);
  EXPECT_EQ(shared_part(list[0].shape, 2).tokens, 64);
  const Capacity c = capacity_of(list);
  EXPECT_EQ(c.max_requests, 3);
  EXPECT_EQ(c.max_query_tokens, 34);
  EXPECT_EQ(c.max_kv_tokens, 225);
  const ShapeTables tables(list[0].shape);
  EXPECT_EQ(tables.num_pages(), 5 + (6 - 4) + (5 - 4));
}

TEST_F(CudaBenchSteps, ALineThatIsNoStepIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"q_len\"", "steps.jsonl:1: got no JSON object"},
      {"\n{\"page_size\": 16}", "steps.jsonl:2: q_len: got none"},
      {R"({"page_size": 16, "q_len": [1], "kv_len": [1, 2], "shared_with": [-1], "shared_tokens": [0]})", "got 1 q_len, 2 kv_len"},
      {R"({"page_size": 16, "q_len": [2], "kv_len": [1], "shared_with": [-1], "shared_tokens": [0]})", "request 0: got q_len 2 and kv_len 1"},
      {R"({"page_size": 16, "q_len": [1], "kv_len": [1], "shared_with": [0], "shared_tokens": [0]})", "request 0: shared_with: got 0"},
      {R"({"page_size": 16, "q_len": [1, 1], "kv_len": [40, 16], "shared_with": [-1, 0], "shared_tokens": [0, 32]})", "request 1: shared_tokens: got 32"},
      {"", "got no step"},
  };
  for (const auto& [text, says] : cases) {
    const std::string words = test::error_of([&] { steps(text); });
    EXPECT_NE(words.find(says), std::string::npos) << words;
  }
}

TEST_F(CudaBenchSteps, EverySchedulesTimeAndTheSumsOfATrace) {
  const std::vector<TraceStep> list = steps();
  const std::vector<std::string> names{"auto", "fixed_split", "flat"};
  StepSchedules schedules(list, names, 0, "", "");
  GpuTimer timer(0, {0.0, 1, 3, 0.0, 0.0});
  GpuNormals normals(0);
  AttentionSpec spec = layer();
  gpu.set_spec(&spec);
  std::vector<StepRow> rows;
  for (const TraceStep& t : list) rows.push_back(schedules.measure(t, timer, normals));
  gpu.set_spec(nullptr);
  for (const StepRow& row : rows) {
    for (const std::string& name : names) {
      EXPECT_EQ(row.at(name).why, "") << name;
      EXPECT_DOUBLE_EQ(row.at(name).us, 1000.0) << name;
      EXPECT_GT(row.at(name).planned_us, 0.0) << name;
    }
    EXPECT_EQ(row.at("fixed_split").policy, "fixed_split");
  }
  const std::vector<nlohmann::ordered_json> peers{{{{"peer", "slow"}, {"median_us", 3000.0}, {"plan_us", 50.0}}, {{"peer", "fast"}, {"median_us", 2000.0}, {"plan_us", 1500.0}}, {{"peer", "none"}, {"why", "?"}}},
                                                  nlohmann::ordered_json::array()};
  const nlohmann::ordered_json sums = step_sums(list, rows, names, peers);
  EXPECT_DOUBLE_EQ(sums["all"]["schedules"]["auto"]["us"], 11000.0);
  EXPECT_DOUBLE_EQ(sums["decode"]["schedules"]["fixed_split"]["us"], 10000.0);
  EXPECT_DOUBLE_EQ(sums["all"]["schedules"]["fixed_split"]["over_first"], 1.0);
  EXPECT_EQ(sums["all"]["peers"]["steps"], 1) << "the other step has none";
  EXPECT_DOUBLE_EQ(sums["all"]["peers"]["times"], 2.0);
  EXPECT_DOUBLE_EQ(sums["all"]["peers"]["us_with_plans"], 30500.0) << "the fastest with its plan";
  EXPECT_FALSE(sums.contains("prefill"));
}

TEST_F(CudaBenchSteps, WithoutADeviceThePlannersCostsAlone) {
  const std::vector<TraceStep> list = steps();
  StepSchedules schedules(list, {"none", "stream"}, 0, "", "sm_90a");
  const StepRow row = schedules.plan(list[1]);
  EXPECT_EQ(row.at("stream").us, 0.0);
  EXPECT_GT(row.at("none").planned_us, row.at("none").mean_us);
  EXPECT_TRUE(to_json(list[1], row, nlohmann::ordered_json::array())["schedules"]["none"]["us"].is_null());
}

TEST_F(CudaBenchSteps, ConstantsOfTheCostModel) {
  AttentionSpec spec = layer();
  spec.num_qo_heads = 32, spec.num_kv_heads = 8, spec.head_dim_qk = spec.head_dim_vo = 128;
  gpu.add_kernel(spec);
  gpu.set_spec(&spec);
  GpuTimer timer(0, {0.0, 1, 1, 0.0, 0.0});
  GpuNormals normals(0);
  const nlohmann::ordered_json j = measure_gpu_constants(0, "", timer, normals, 16);
  gpu.set_spec(nullptr);
  EXPECT_EQ(j["read"].size(), 6u);
  for (const auto& r : j["read"]) EXPECT_GT(r["bytes_per_ns_per_cta"].get<double>(), 0.0);
  EXPECT_EQ(j["read_beside_computing"].size(), 3u);
  EXPECT_GT(j["compute"][1]["flop_per_ns_per_cta"].get<double>(), 0.0);
  EXPECT_DOUBLE_EQ(j["merge"]["in_16_parts_us"], 0.0) << "a millisecond each";
  EXPECT_TRUE(j["item"].contains("us_per_item_of_32_a_cta"));
}

}  // namespace
}  // namespace kvloom::cli
