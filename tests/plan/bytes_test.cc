// The same batch makes the same plan, byte for byte, on every platform and by whatever path of the planner. A change that means to make
// other plans takes the new number over; one that means to be faster may not.
#include "random_batches.h"

#include <gtest/gtest.h>

namespace kvloom {
namespace {

/// FNV-1a over the used part of every section.
class PlanHash {
 public:
  void add(const PlanView& plan) {
    bytes(plan.header, sizeof(PlanHeader));
    span(plan.groups), span(plan.row_entries), span(plan.cta_indptr), span(plan.items);
    span(plan.units), span(plan.entries), span(plan.touches);
  }
  uint64_t value() const { return hash_; }

 private:
  template <class T>
  void span(const Span<T>& s) {
    bytes(s.data, size_t(s.size) * sizeof(T));
  }
  void bytes(const void* data, size_t size) {
    for (size_t i = 0; i < size; ++i) hash_ = (hash_ ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
  }
  uint64_t hash_ = 0xcbf29ce484222325u;
};

TEST(Bytes, RandomBatches) {
  PlanHash hash;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    test::RandomCase c;
    test::make_random(seed, c);
    hash.add(test::Planned(c.spec, c.capacity, c.config, c.b.batch).view);
  }
  EXPECT_EQ(hash.value(), 0x0485d81c03122d11u) << std::hex << "got 0x" << hash.value();
}

/// Decode steps with some prefills, of which a stream makes many cuts in a unit, or leaves CTAs without work.
TEST(Bytes, StreamsOfEngineSteps) {
  PlanHash hash;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    test::Random r(seed);
    const AttentionSpec spec = test::small_spec(8 * r.of({1, 4, 20}), 8);
    const int32_t requests = r.of({1, 2, r.in(3, 30), r.in(30, 300)});
    const int32_t longest = r.of({3, 200, 4000, 50000});
    std::vector<int32_t> q_len, kv_len;
    for (int32_t i = 0; i < requests; ++i) {
      q_len.push_back(r.chance(5) ? r.in(0, 300) : 1);
      kv_len.push_back(q_len.back() + r.in(0, r.chance(90) ? longest / 4 : longest));
    }
    const test::TestBatch b(q_len, kv_len, spec);
    const Policy policy = r.chance(70) ? Policy::stream : Policy::fixed_split;
    SchedulerConfig config = test::gpu_config(r.of({1, 7, 132, 132, 500}), policy);
    for (KernelClass& k : config.classes) k.heads_per_item = r.of({1, 1, 3, 8}), k.cost_per_item = r.of({0, 300});
    config.snap_memory = r.of({0, 1000});
    hash.add(test::Planned(spec, test::capacity_of(b), config, b.batch).view);
  }
  EXPECT_EQ(hash.value(), 0x3a44ff1f76058d72u) << std::hex << "got 0x" << hash.value();
}

}  // namespace
}  // namespace kvloom
