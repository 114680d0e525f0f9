// plan() does not allocate once it has planned a step of that kind and size; and capacities that memory does not have.
#include "kvloom/plan/planner.h"
#include "kvloom/support/error.h"
#include "random_batches.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <tuple>

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
std::atomic<std::size_t> most_at_once{~std::size_t(0)};

void* counted(std::size_t n) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (n > most_at_once.load(std::memory_order_relaxed)) throw std::bad_alloc();
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

// An error as all others, which names the field.
TEST(Memory, ACapacityThatDoesNotFitNamesItsField) {
  AttentionSpec spec;
  spec.num_qo_heads = spec.num_kv_heads = 1, spec.head_dim_qk = spec.head_dim_vo = 64;
  const std::tuple<Capacity, const char*, const char*> cases[] = {
      {{1 << 20, 1, 1, 0, 0}, "plan: row groups: got no memory, wanted 67108928 bytes for 1048577; lower Capacity.max_requests", "requests"},
      {{1, 1, 1, 0, 1 << 20}, "plan: row groups: got no memory, wanted 67108864 bytes for 1048576; lower Capacity.max_groups", "groups"},
      {{1, 1, 1, 1 << 20, 0}, "plan: row groups: got no memory, wanted 67108992 bytes for 1048578; lower Capacity.max_level_rows", "level rows"},
      {{1, 1 << 28, 1, 0, 1}, "; lower Capacity.max_query_tokens", "query tokens"},
  };
  for (const auto& [capacity, says, name] : cases) {
    most_at_once = 1 << 20;
    std::string text;
    int code = 0;
    try {
      plan::Planner planner(spec, capacity, SchedulerConfig());
    } catch (const Error& e) {
      text = e.what(), code = int(e.code());
    }
    most_at_once = ~std::size_t(0);
    EXPECT_EQ(code, int(ErrorCode::out_of_memory)) << name;
    EXPECT_NE(text.find(says), std::string::npos) << name << ": " << text;
  }
}

}  // namespace
}  // namespace kvloom

#endif
