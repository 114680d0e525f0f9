// What the tests of engines on the fake driver share.
#pragma once

#include "tests/cuda/fake_gpu.h"

#include "kvloom/support/error.h"

#include <gtest/gtest.h>

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

class CudaEngine : public testing::Test {
 protected:
  void SetUp() override {
    gpu.reset();
    gpu.add_kernel(gpu_spec());
  }
  FakeGpu& gpu = FakeGpu::get();
};

template <class F>
std::string error_of(F&& f, ErrorCode code) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(int(e.code()), int(code)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}
inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline void expect_device_right(GpuStep& g, const Step& s, const std::string& what = "") {
  g.download();
  expect_right(s, what);
}

}  // namespace kvloom::test
