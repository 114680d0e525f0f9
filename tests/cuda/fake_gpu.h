// A test's GPU: the fake driver and kernels for the specs that it wants, or (KVLOOM_TEST_GPU=1) the machine's own, which has all kernels;
// and a step's tensors in device memory.
#pragma once

#include "kvloom/api/engine.h"
#include "kvloom/api/gpu.h"
#include "kvloom/jit/unit.h"
#include "tests/cuda/fake_cubin.h"
#include "tests/support/step.h"

#include <deque>
#include <string>

namespace kvloom::test {

/// What the fake driver has counted since reset().
class FakeGpu {
 public:
  static FakeGpu& get();
  bool is_fake() const { return controls_.reset != nullptr; }
  /// A driver whose kernels are emulated (lab/sm90); the usual one's arithmetic is the CPU's.
  bool is_emulated() const;
  void reset() {
    if (is_fake()) controls_.reset();
  }
  /// Every kernel computes `spec` from now on (heads are not part of a key); nullptr: what its cubin says.
  void set_spec(const AttentionSpec* spec) {
    if (is_fake()) controls_.set_spec(spec);
  }
  // Of the fake driver alone.
  int64_t count(const char* call) const { return controls_.count(call); }
  void set_free_bytes(int64_t bytes) { controls_.set_free_bytes(bytes); }
  /// CTAs that fit an SM of any kernel; -1: by its shared memory.
  void set_occupancy(int ctas) { controls_.set_occupancy(ctas); }
  std::string last_entry() const { return controls_.last_entry(); }
  bool last_early() const { return controls_.last_early() != 0; }
  /// Puts a kernel for `spec` into the cache: one spec a key, for the life of the process.
  void add_kernel(const AttentionSpec& spec, bool fixed_split = false, int32_t shared_bytes = 0);
  /// The same for what is no attention: the operations around it (jit::ops_program()), a program of the tool's own.
  void add_program(const jit::Program& program);

 private:
  FakeGpu();
  FakeControls controls_;
};

/// An array's copy in the memory of device 0.
template <class T>
GpuBuffer put(const std::vector<T>& x) {
  GpuBuffer b(0, int64_t(x.size() * sizeof(T)));
  b.upload(x.data(), b.size());
  return b;
}

/// The tensors of a step in device memory.
class GpuStep {
 public:
  GpuStep(Step& step, int32_t device = 0);
  RunTensors tensors;
  /// O and LSE on the device become NaN.
  void poison();
  /// Copies O and LSE into the step's own (or another's of the same shape), after everything on the device.
  void download() { download(step_); }
  void download(Step& step);
  /// Without waiting for anything.
  void download_as_it_stands(Step& step);
  /// Another step's Q, K, V and pages at the same addresses; O and LSE become NaN. It may not be larger.
  void refill(const Step& other);

 private:
  void* put(const void* data, int64_t bytes);
  Step& step_;
  int32_t device_;
  std::deque<GpuBuffer> buffers_;
  GpuBuffer o_, lse_;
};

}  // namespace kvloom::test
