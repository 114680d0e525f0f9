#include "tests/cuda/fake_gpu.h"
#include "tests/cuda/fake_units.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace kvloom::test {
namespace {

std::string cache_folder() {
  static const std::string path = [] {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvloom-cuda-XXXXXX").string();
    const std::string made = ::mkdtemp(pattern.data());
    std::atexit([] { std::filesystem::remove_all(std::getenv("KVLOOM_CACHE_DIR")); });
    return made;
  }();
  return path;
}

/// Another fake driver may take the place of ours: one that runs kernels on an emulated GPU (lab/sm90).
const char* driver_file() {
  const char* other = std::getenv("KVLOOM_TEST_DRIVER");
  return other != nullptr ? other : KVLOOM_FAKE_DRIVER;
}
bool has_other_driver() { return std::getenv("KVLOOM_TEST_DRIVER") != nullptr; }

bool wants_real_gpu() {
  const char* word = std::getenv("KVLOOM_TEST_GPU");
  return word != nullptr && std::string(word) == "1";
}

/// Before main: the driver is looked for once a process.
const bool environment_set = [] {
  if (wants_real_gpu()) return false;
  ::setenv("KVLOOM_CUDA_DRIVER", driver_file(), 1);
  ::setenv("KVLOOM_CACHE_DIR", cache_folder().c_str(), 1);
  ::setenv("KVLOOM_NO_JIT", "1", 1);
  return true;
}();

}  // namespace

FakeGpu::FakeGpu() {
  if (wants_real_gpu()) return;
  void* library = ::dlopen(driver_file(), RTLD_NOW | RTLD_LOCAL);
  const auto find = [&](auto& to, const char* name) { to = reinterpret_cast<std::decay_t<decltype(to)>>(::dlsym(library, name)); };
  find(controls_.reset, "fake_reset");
  find(controls_.count, "fake_count");
  find(controls_.set_free_bytes, "fake_set_free_bytes");
  find(controls_.set_occupancy, "fake_set_occupancy");
  find(controls_.set_spec, "fake_set_spec");
  find(controls_.last_entry, "fake_last_entry");
  find(controls_.last_early, "fake_last_early");
}

bool FakeGpu::is_emulated() const { return is_fake() && has_other_driver(); }

FakeGpu& FakeGpu::get() {
  static FakeGpu gpu;
  return gpu;
}

void FakeGpu::add_kernel(const AttentionSpec& spec, bool fixed_split, int32_t shared_bytes) {
  if (!is_fake()) return;
  ASSERT_TRUE(store_fake_kernel(spec, fixed_split, shared_bytes, has_other_driver()));
}

void FakeGpu::add_program(const jit::Program& program) {
  if (!is_fake()) return;
  ASSERT_TRUE(store_fake_program(program));
}

GpuStep::GpuStep(Step& step, int32_t device) : step_(step), device_(device) {
  tensors = step.tensors;
  const auto move = [&](Array& a) {
    Tensor t = a;
    t.data = put(a.bytes.data(), int64_t(a.bytes.size()));
    t.device_type = 2;
    return t;
  };
  tensors.q = move(step.q);
  tensors.k = move(step.k);
  tensors.v = move(step.v);
  o_ = GpuBuffer(device, int64_t(step.o.bytes.size()));
  lse_ = GpuBuffer(device, int64_t(step.lse.bytes.size()));
  tensors.o.data = o_.data();
  if (tensors.lse.given()) tensors.lse.data = lse_.data();
  const auto array = [&](const auto* data, size_t count) {
    return data == nullptr ? nullptr : static_cast<decltype(data)>(put(data, int64_t(count * sizeof *data)));
  };
  if (step.batch.pages.given()) {
    tensors.pages =
        IndexView(static_cast<const int32_t*>(put(step.pages.data(), int64_t(step.pages.size()) * 4)), int64_t(step.pages.size()));
  }
  tensors.alibi_slopes = array(tensors.alibi_slopes, step.slopes.size());
  tensors.sink = array(tensors.sink, step.sinks.size());
  tensors.mask = array(tensors.mask, step.mask.size());
  tensors.mask_indptr = array(tensors.mask_indptr, step.mask_indptr.size());
}

void* GpuStep::put(const void* data, int64_t bytes) {
  buffers_.emplace_back(device_, bytes);
  buffers_.back().upload(data, bytes);
  return buffers_.back().data();
}

void GpuStep::poison() {
  o_.fill(0xff);
  lse_.fill(0xff);
}

void GpuStep::download(Step& step) {
  gpu_synchronize(device_);
  download_as_it_stands(step);
}

void GpuStep::download_as_it_stands(Step& step) {
  o_.download(step.o.bytes.data(), int64_t(step.o.bytes.size()));
  if (tensors.lse.given()) lse_.download(step.lse.bytes.data(), int64_t(step.lse.bytes.size()));
}

void GpuStep::refill(const Step& other) {
  buffers_[0].upload(other.q.bytes.data(), int64_t(other.q.bytes.size()));
  buffers_[1].upload(other.k.bytes.data(), int64_t(other.k.bytes.size()));
  buffers_[2].upload(other.v.bytes.data(), int64_t(other.v.bytes.size()));
  if (tensors.pages.given()) buffers_[3].upload(other.pages.data(), int64_t(other.pages.size()) * 4);
  poison();
}

}  // namespace kvloom::test
