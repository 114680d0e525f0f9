// plan() does not allocate once it has planned a step of that kind and size.
#include "random_batches.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVLOOM_TEST_SANITIZED
#elif defined(__has_feature)  // clang
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KVLOOM_TEST_SANITIZED
#endif
#endif
#if !defined(KVLOOM_TEST_SANITIZED)  // sanitizers bring operators of their own

namespace {
std::atomic<int64_t> allocations{0};

void* counted(std::size_t n) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t n) { return counted(n); }
void* operator new[](std::size_t n) { return counted(n); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace kvloom {
namespace {

TEST(Memory, NoAllocationAfterTheFirstCall) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    test::RandomCase c;
    test::make_random(seed, c);
    plan::Planner planner(c.spec, c.capacity, c.config);
    const test::PlanBuffer buffer(planner.layout().plan_bytes);
    planner.plan(c.b.batch, buffer.data, buffer.bytes);
    const int64_t before = allocations.load();
    planner.plan(c.b.batch, buffer.data, buffer.bytes);
    ASSERT_EQ(allocations.load() - before, 0) << "seed " << seed << " policy " << int(c.config.policy);
  }
}

}  // namespace
}  // namespace kvloom

#endif
