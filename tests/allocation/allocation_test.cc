// Planning step after step and running layer after layer takes no memory: every operator new of the program is counted here.
#include "tests/support/step.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // these are the matching pairs

namespace {
std::atomic<int64_t> allocations{0};

void* counted(size_t bytes, size_t align) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* const p = align <= alignof(std::max_align_t) ? std::malloc(bytes) : std::aligned_alloc(align, (bytes + align - 1) / align * align);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
}  // namespace

void* operator new(size_t bytes) { return counted(bytes > 0 ? bytes : 1, 1); }
void* operator new[](size_t bytes) { return counted(bytes > 0 ? bytes : 1, 1); }
void* operator new(size_t bytes, std::align_val_t align) { return counted(bytes, size_t(align)); }
void* operator new(size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept { return counted(bytes, size_t(align)); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }

namespace kvloom::test {
namespace {

void expect_no_allocation(AttentionSpec spec, Policy policy) {
  Step s;
  s.spec = spec;
  s.requests = {{1, 900}, {1, 77}, {30, 60}, {1, 350}};
  s.make();
  EngineOptions options;
  options.threads = 2;
  options.policy = policy;
  Engine engine(s.spec, s.capacity(), options);
  const auto step = [&] {
    const Plan plan = engine.plan(s.batch);
    for (int layer = 0; layer < 3; ++layer) engine.run(plan, s.tensors);
  };
  step();
  step();
  const int64_t before = allocations.load();
  for (int i = 0; i < 5; ++i) {
    s.kv_len[0] -= 7;  // another step each time, none larger than the first
    step();
  }
  EXPECT_EQ(allocations.load(), before) << "policy " << int(policy);
  expect_right(s);
}

TEST(Allocation, NoneInSteadyState) {
  for (const Policy policy : {Policy::none, Policy::heap, Policy::stream, Policy::fill, Policy::fixed_split, Policy::automatic}) {
    expect_no_allocation(small_spec(), policy);
  }
}

TEST(Allocation, NoneWithEveryFeature) {
  AttentionSpec spec = small_spec();
  spec.kv_dtype = DType::bf16;
  spec.variant.custom_mask = spec.variant.alibi = spec.variant.sink = true;
  spec.variant.soft_cap = 20.0f;
  spec.variant.rope.mode = RopeMode::half_split;
  Step s;
  s.spec = spec;
  s.requests = {{1, 300}, {20, 60}};
  s.make();
  Engine engine(s.spec, s.capacity());
  const auto step = [&] { engine.run(engine.plan(s.batch), s.tensors); };
  step();
  step();
  const int64_t before = allocations.load();
  step();
  EXPECT_EQ(allocations.load(), before);
}

}  // namespace
}  // namespace kvloom::test
