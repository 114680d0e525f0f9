// `kvloom bench --backend cuda` on the fake driver, where everything takes a millisecond and SMs run at 1500 MHz: what is put into the
// stream, and what is made of the times.
#include "cli/bench/gpu_problem.h"
#include "cli/bench/gpu_products.h"
#include "cli/bench/gpu_rows.h"
#include "tests/cuda/engine_fixture.h"
#include "tests/support/temporary_folder.h"

#include <dlfcn.h>

#include <set>

namespace kvloom::cli {
namespace {

using test::Environment;
using test::FakeGpu;

constexpr double kMillisecond = 1000.0;  // us

GpuBenchOptions quick() {
  GpuBenchOptions o;
  o.protocol = {0.0, 1, 3, 0.002, 0.01};
  o.ceilings = {1 << 16, 64};
  return o;
}

GpuShape small_shape(const char* name = "small", int32_t page_size = 16) {
  GpuShape s;
  s.name = name;
  s.spec.num_qo_heads = 4;
  s.spec.num_kv_heads = 2;
  s.spec.head_dim_qk = s.spec.head_dim_vo = 64;
  s.spec.q_dtype = s.spec.kv_dtype = s.spec.o_dtype = DType::bf16;
  s.spec.page_size = page_size;
  s.spec.variant.range.causal = true;
  s.q_len = {33, 20};
  s.kv_len = {40, 20};
  return s;
}

class CudaBench : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(gpu.is_fake());
    gpu.reset();
    for (const jit::Program& p :
         {jit::Program{"bench.read", kGpuReadText}, {"bench.clock", kGpuClockText}, {"bench.products", kGpuProductsText}, jit::plan_program()}) {
      gpu.add_program(p);
    }
  }
  GpuBenchRow measure(GpuBench& bench, const GpuShape& s) {
    gpu.add_kernel(s.spec);
    gpu.set_spec(&s.spec);
    const GpuBenchRow row = bench.measure(s);
    gpu.set_spec(nullptr);
    return row;
  }
  static long long matmuls() {
    void* library = ::dlopen(KVLOOM_FAKE_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<long long (*)()>(::dlsym(library, "fake_matmuls"))();
  }
  FakeGpu& gpu = FakeGpu::get();
  Environment library_{"KVLOOM_CUBLASLT", KVLOOM_FAKE_CUBLASLT};
};

TEST_F(CudaBench, CeilingsInBothProtocols) {
  const long long before = matmuls();
  const GpuBench bench(quick());
  const GpuCeilings& c = bench.ceilings();
  EXPECT_DOUBLE_EQ(c.copy_tbps, 2 * 65536 * 1e-6 / kMillisecond);
  EXPECT_DOUBLE_EQ(c.read_tbps, 65536 * 1e-6 / kMillisecond);
  ASSERT_TRUE(c.matmul) << c.matmul_why;
  EXPECT_EQ(c.matmul->library, "cuBLASLt 13.1.2");
  EXPECT_EQ(c.matmul->path, KVLOOM_FAKE_CUBLASLT);
  EXPECT_DOUBLE_EQ(c.matmul->burst_tflops, 2.0 * 64 * 64 * 64 * 1e-6 / kMillisecond);
  EXPECT_EQ(c.matmul->burst.runs, 3);
  EXPECT_GE(c.matmul->sustained.runs, 10) << "as many of a millisecond as fill the time";
  // Two ways tried five times each, 1 + 3 in the burst, 8 and the measured ones sustained.
  EXPECT_EQ(matmuls() - before, 2 * 5 + 4 + 8 + c.matmul->sustained.runs);
  const nlohmann::ordered_json j = to_json(c);
  EXPECT_EQ(j["matmul"]["burst"]["clock_mhz"], 1500.0);
  EXPECT_DOUBLE_EQ(j["matmul"]["sustained"]["tensor_share"], 2.0 * 64 * 64 * 64 / (4096.0 * 5 * 1500 * c.matmul->sustained.us));
  EXPECT_FALSE(j.contains("matmul_why"));
}

TEST_F(CudaBench, WithoutCublasLtTheRestRunsAndSaysWhy) {
  const std::pair<std::pair<const char*, const char*>, const char*> cases[] = {
      {{"KVLOOM_CUBLASLT", "/nonexistent/libcublasLt.so"}, "tried: /nonexistent/libcublasLt.so: cannot open"},
      {{"KVLOOM_CUBLASLT", KVLOOM_FAKE_DRIVER}, "has no cublasLtGetVersion"},
      {{"FAKE_CUBLASLT_CREATE", "1"}, "version 13.1.2 does not start: 1: said by the fake cuBLASLt"},
  };
  for (const auto& [variable, says] : cases) {
    const Environment set(variable.first, variable.second);
    GpuBench bench(quick());
    EXPECT_FALSE(bench.ceilings().matmul);
    const nlohmann::ordered_json j = to_json(bench.ceilings());
    EXPECT_TRUE(j["matmul"].is_null());
    EXPECT_NE(j["matmul_why"].get<std::string>().find(says), std::string::npos) << j["matmul_why"];
    const nlohmann::ordered_json row = to_json(measure(bench, small_shape()));
    EXPECT_EQ(row["share_of"], "products");
    EXPECT_GT(row["share"], 0.0);
    EXPECT_TRUE(row["sustained"]["share"].is_null()) << "no ceiling was taken back to back";
  }
}

TEST_F(CudaBench, WithoutCeilingsRowsHaveNoShares) {
  GpuBenchOptions o = quick();
  o.no_ceilings = true;
  const long long before = matmuls();
  GpuBench bench(o);
  EXPECT_EQ(matmuls(), before);
  EXPECT_EQ(to_json(bench.ceilings())["matmul_why"], "--no-ceilings");
  const nlohmann::ordered_json row = to_json(measure(bench, small_shape()));
  EXPECT_TRUE(row["share"].is_null()) << row;
  EXPECT_GT(row["tflops"], 0.0);
}

TEST_F(CudaBench, ARowBesideTheCeilingsOfItsProtocol) {
  GpuBench bench(quick());
  const GpuShape s = small_shape();
  const GpuBenchRow row = measure(bench, s);
  EXPECT_NE(row.key.find("attend.sm90.bf16.d64.paged.causal"), std::string::npos);
  EXPECT_EQ(row.runs, 1) << "long enough to be timed alone";
  EXPECT_EQ(row.share_of, "matmul");
  EXPECT_DOUBLE_EQ(row.burst.tflops, flop_of(s) * 1e-6 / kMillisecond);
  EXPECT_DOUBLE_EQ(row.burst.share, row.burst.tflops / bench.ceilings().matmul->burst_tflops);
  ASSERT_TRUE(row.sustained);
  EXPECT_DOUBLE_EQ(row.sustained->share, row.sustained->tflops / bench.ceilings().matmul->sustained_tflops);
  // Five SMs of a Hopper, 1500 cycles in a microsecond.
  EXPECT_DOUBLE_EQ(row.burst.tensor_share, flop_of(s) / (4096.0 * 5 * 1500 * kMillisecond));
  EXPECT_DOUBLE_EQ(row.burst.times.clock_mhz, 1500.0);
  GpuShape memory = s;
  memory.memory_bound = true;
  const GpuBenchRow read = measure(bench, memory);
  EXPECT_FALSE(read.sustained);
  EXPECT_EQ(read.share_of, "read");
  EXPECT_DOUBLE_EQ(read.burst.share, bytes_of(s) * 1e-6 / kMillisecond / bench.ceilings().read_tbps);
  EXPECT_FALSE(to_json(read).contains("sustained"));
}

TEST_F(CudaBench, PlanningAloneHasATimeAndNothingElse) {
  GpuBench bench(quick());
  GpuShape s = small_shape("plan");
  s.plan_alone = true;
  const GpuBenchRow row = measure(bench, s);
  EXPECT_EQ(row.why, "");
  EXPECT_EQ(row.policy, "stream");
  EXPECT_EQ(row.runs, 20);
  EXPECT_GT(row.burst.times.us, 0.0);
  EXPECT_DOUBLE_EQ(row.alone_us, kMillisecond);
  EXPECT_GT(row.plan_us, 0.0);
  const nlohmann::ordered_json j = to_json(row);
  EXPECT_EQ(j["bound"], "plan");
  EXPECT_TRUE(j["share"].is_null());
  EXPECT_FALSE(j.contains("sustained"));
}

TEST_F(CudaBench, ARowRunInAnotherWayStandsBesideTheOther) {
  GpuBench bench(quick());
  GpuShape s = small_shape("as the engine runs it");
  s.memory_bound = true;
  EXPECT_FALSE(to_json(measure(bench, s)).contains("beside"));
  s.beside = s.name, s.name = "plain", s.early_launch = false;
  const nlohmann::ordered_json plain = to_json(measure(bench, s));
  EXPECT_EQ(plain["beside"]["shape"], "as the engine runs it");
  EXPECT_DOUBLE_EQ(plain["beside"]["times"], 1.0) << "a millisecond each";
  s.name = "fixed", s.early_launch = true, s.policy = Policy::fixed_split;
  gpu.add_kernel(s.spec, true);
  EXPECT_EQ(to_json(measure(bench, s))["policy"], "fixed_split");
  s.name = "nothing before it", s.policy = Policy::automatic, s.beside = "no row";
  EXPECT_FALSE(to_json(measure(bench, s)).contains("beside"));
}

TEST_F(CudaBench, RopeApartIsALaunchBeforeEveryRun) {
  gpu.add_program(jit::ops_program());
  GpuBench bench(quick());
  GpuShape s = small_shape("apart");
  s.memory_bound = true;
  s.spec.variant.rope.mode = RopeMode::half_split;
  s.rope_apart = true;
  AttentionSpec without = s.spec;
  without.variant.rope = {};
  gpu.add_kernel(without);
  gpu.set_spec(&without);
  const GpuBenchRow row = bench.measure(s);
  gpu.set_spec(nullptr);
  EXPECT_EQ(row.why, "");
  EXPECT_EQ(row.key.find("rope"), std::string::npos) << row.key;
  EXPECT_GT(row.rope_us, 0.0);
  GpuNormals normals(0);
  const GpuProblem p(s, 0, normals);
  const std::vector<int32_t> positions = ShapeTables(s).positions();
  const auto* pages = static_cast<const int32_t*>(p.batch().pages.data);
  for (int e = 0; e < 3; ++e) EXPECT_EQ(positions[size_t(pages[e]) * 16 + 5], 16 * e + 5) << "the first request's list";
  EXPECT_EQ(positions[size_t(pages[3]) * 16], 0) << "the second's";
}

TEST_F(CudaBench, ARowThatCanNotRunSaysWhyAndTheOthersStand) {
  GpuBench bench(quick());
  GpuShape s = small_shape("no kernel");
  s.spec.head_dim_qk = s.spec.head_dim_vo = 112;  // none in the cache, and nothing is compiled here
  const nlohmann::ordered_json row = to_json(bench.measure(s));
  EXPECT_EQ(row.size(), 2u) << row;
  EXPECT_NE(row["why"].get<std::string>().find("d112"), std::string::npos) << row;
  EXPECT_EQ(measure(bench, small_shape()).why, "");
}

// The figures are those of the usual kernels; the times of another engine's runs stand beside them.
TEST_F(CudaBench, TimelinesOfRows) {
  GpuBenchOptions o = quick();
  EXPECT_FALSE(to_json(measure(*std::make_unique<GpuBench>(o), small_shape())).contains("timeline"));
  o.timeline = true;
  GpuBench bench(o);
  for (const char* name : {"prefill", "decode"}) {
    GpuShape s = small_shape(name);
    if (name == std::string("decode")) s.q_len = {1, 1}, s.kv_len = {900, 400}, s.memory_bound = true;
    const GpuBenchRow row = measure(bench, s);
    ASSERT_EQ(row.why, "");
    ASSERT_TRUE(row.timeline);
    const Timeline& t = *row.timeline;
    EXPECT_EQ(t.name, name);
    EXPECT_EQ(t.key, row.key);
    EXPECT_FALSE(t.on_cpu);
    EXPECT_EQ(t.items.size(), t.planned.size() * size_t(t.cluster));
    EXPECT_EQ(t.cluster, name == std::string("prefill") ? 2 : 1) << "attend_compute is launched in clusters";
    EXPECT_EQ(t.num_lanes, t.num_lists * t.cluster);
    EXPECT_GT(t.kernel_us, 0.0);
    const nlohmann::ordered_json j = to_json(row);
    EXPECT_EQ(j["timeline"]["items"], t.planned.size());
    EXPECT_TRUE(j["timeline"]["classes"].contains(name == std::string("prefill") ? "compute" : "memory"));
    EXPECT_DOUBLE_EQ(row.burst.times.us, kMillisecond);
  }
  GpuShape plan = small_shape("plan");
  plan.plan_alone = true;
  EXPECT_FALSE(measure(bench, plan).timeline);
}

TEST_F(CudaBench, TheFamilyThatIsAskedFor) {
  GpuBenchOptions o = quick();
  for (const char* family : {"sm80", "sm90"}) {
    o.kernel = family;
    GpuBench bench(o);
    const GpuBenchRow row = measure(bench, small_shape());
    EXPECT_EQ(row.why, "");
    EXPECT_EQ(row.key.rfind(std::string("attend.") + family + ".", 0), 0u) << row.key;
  }
}

TEST_F(CudaBench, AClockThatCanNotBeIsNotReported) {
  const Environment fast("FAKE_SM_MHZ", "2500");  // the chip has 1980
  GpuBench bench(quick());
  const nlohmann::ordered_json row = to_json(measure(bench, small_shape()));
  EXPECT_TRUE(row["clock_mhz"].is_null());
  EXPECT_TRUE(row["tensor_share"].is_null());
  EXPECT_NE(row["clock_why"].get<std::string>().find("2500 MHz where the chip's clock is 1980 at most"), std::string::npos) << row;
}

TEST_F(CudaBench, PagesLieInRandomOrderEachOnce) {
  GpuNormals normals(0);
  const GpuShape s = small_shape("pages", 1);
  const GpuProblem p(s, 0, normals);
  const auto* pages = static_cast<const int32_t*>(p.batch().pages.data);
  const std::vector<int32_t> ids(pages, pages + p.batch().pages.size);
  EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()).size(), 60u);
  EXPECT_FALSE(std::is_sorted(ids.begin(), ids.end()));
  EXPECT_EQ(p.tensors(0).k.shape[0], 60);
  EXPECT_GT(p.copies(), 1);
  EXPECT_NE(p.tensors(0).k.data, p.tensors(1).k.data);
  EXPECT_EQ(p.tensors(0).k.data, p.tensors(p.copies()).k.data);
}

TEST_F(CudaBench, ASharedPrefixLiesInTheSamePages) {
  GpuShape s = small_shape();
  s.q_len = {1, 1, 1};
  s.kv_len = {70, 70, 70};
  s.shared_prefix = 64;
  GpuNormals normals(0);
  const GpuProblem p(s, 0, normals);
  const auto* pages = static_cast<const int32_t*>(p.batch().pages.data);
  ASSERT_EQ(p.batch().pages.size, 15);
  EXPECT_EQ(std::set<int32_t>(pages, pages + 15).size(), 4u + 3u);
  for (int r = 1; r < 3; ++r) EXPECT_TRUE(std::equal(pages, pages + 4, pages + 5 * r));
  EXPECT_EQ(p.capacity().max_level_rows, 3);
  GpuBench bench(quick());
  EXPECT_GT(measure(bench, s).burst.tbps, 0.0);
}

TEST_F(CudaBench, MlaReadsValuesWithinKeys) {
  GpuShape s = small_shape();
  s.spec.num_kv_heads = 1;
  s.spec.head_dim_qk = 576;
  s.spec.head_dim_vo = 512;
  s.v_in_k = true;
  GpuNormals normals(0);
  const GpuProblem p(s, 0, normals);
  const RunTensors t = p.tensors(0);
  EXPECT_EQ(t.k.data, t.v.data);
  EXPECT_EQ(t.v.shape[3], 512);
  EXPECT_EQ(t.v.stride[2], 576);
  GpuBench bench(quick());
  EXPECT_GT(measure(bench, s).burst.tflops, 0.0);
}

// The same sequence wherever a buffer begins, and none of it zero.
TEST_F(CudaBench, ValuesAreNormal) {
  GpuNormals normals(0);
  const GpuBuffer first = normals.make(10007, DType::bf16), second = normals.make(10007, DType::bf16);
  std::vector<uint16_t> a(10007), b(10007);
  first.download(a.data(), first.size());
  second.download(b.data(), second.size());
  EXPECT_NE(a, b);
  double square = 0;
  for (int64_t i = 0; i < 10007; ++i) {
    const float x = load_as_float(a.data(), DType::bf16, i);
    square += double(x) * x;
  }
  EXPECT_NEAR(square / 10007, 1.0, 0.05);
}

}  // namespace
}  // namespace kvloom::cli
