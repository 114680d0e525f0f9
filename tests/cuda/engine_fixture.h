// What the tests of engines on a GPU share. Tests of GpuEngine ask nothing of the driver that only the fake one has: with KVLOOM_TEST_GPU=1
// they run on the machine's own GPU, with a watchdog over every one of them; tests of CudaEngine want the fake driver.
#pragma once

#include "cli/check/watchdog.h"
#include "kvloom/support/error.h"
#include "tests/cuda/fake_gpu.h"
#include "tests/support/errors.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace kvloom::test {

inline AttentionSpec gpu_spec() {
  AttentionSpec s = small_spec();
  s.q_dtype = s.kv_dtype = s.o_dtype = DType::bf16;
  return s;
}

inline Step make_step(std::vector<Request> requests, const AttentionSpec& spec = gpu_spec(), uint32_t seed = 1) {
  Step s;
  s.spec = spec;
  s.requests = std::move(requests);
  s.seed = seed;
  s.make();
  return s;
}

inline EngineOptions cuda_options() {
  EngineOptions o;
  o.backend = Backend::cuda;
  o.device = 0;
  return o;
}

inline Capacity large() { return {8, 200, 4000, 0, 0}; }

class GpuEngine : public testing::Test {
 protected:
  void SetUp() override {
    watchdog_.arm(testing::UnitTest::GetInstance()->current_test_info()->name());
    gpu.reset();
    gpu.add_kernel(gpu_spec());
    gpu.add_program(jit::ops_program());
  }
  void TearDown() override {
    gpu_synchronize(0);
    watchdog_.disarm();
  }
  FakeGpu& gpu = FakeGpu::get();

  /// That this GPU runs, of those with steps of up to 32 rows.
  std::vector<const char*> families() const {
    if (gpu.is_fake() || gpus()[0].arch == "sm_90a") return {"sm80", "sm90"};
    return {"sm80"};
  }

 private:
  /// Kernels are compiled in that time, too; under a sanitizer everything takes longer.
  static std::chrono::seconds limit() {
    const char* word = std::getenv("KVLOOM_TEST_SECONDS");
    return std::chrono::seconds(word != nullptr ? std::atoi(word) : 120);
  }
  check::Watchdog watchdog_{limit()};
};

class CudaEngine : public GpuEngine {
 protected:
  void SetUp() override {
    ASSERT_TRUE(gpu.is_fake()) << "this test wants the fake driver: run it without KVLOOM_TEST_GPU";
    GpuEngine::SetUp();
  }
};

/// Within the bounds of tensor cores (cli/check/compare_gpu.cc says why).
inline void expect_gpu_right(const Step& s, const std::string& what = "") {
  const Distance d = distance_to_ref(s);
  EXPECT_EQ(d.fault, "") << what;
  EXPECT_LE(d.whole, 2.6e-3) << what;
  EXPECT_LE(d.worst_row_floored, 4e-3) << what;
  EXPECT_LE(d.lse, 4e-6) << what;
}

inline void expect_device_right(GpuStep& g, Step& s, const std::string& what = "") {
  g.download(s);
  expect_gpu_right(s, what);
}

inline std::vector<char> bits_of(GpuStep& g, Step& s) {
  g.download(s);
  std::vector<char> bits = s.o.bytes;
  bits.insert(bits.end(), s.lse.bytes.begin(), s.lse.bytes.end());
  return bits;
}

}  // namespace kvloom::test
