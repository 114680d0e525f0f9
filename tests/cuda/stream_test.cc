// Hopper's kernels of few rows, of many, and of both in one: pages that masks take from every row, lists of both kinds on few CTAs, heads that are read two
// together where their number is odd. They say more on emulated kernels (lab/sm90/emulate.sh) and on a GPU than on the CPU's.
#include "tests/cuda/hopper_fixture.h"

#include <algorithm>
#include <cmath>

namespace kvloom::test {
namespace {

class GpuStream : public HopperEngine {
 protected:
  /// Runs `step` once, on kernels made for its spec, where what is right is another test's to say.
  Distance run_and_compare(Step& step, EngineOptions options) {
    gpu.add_kernel(step.spec);
    gpu.set_spec(&step.spec);
    Engine engine(step.spec, step.capacity(), options);
    GpuStep g(step);
    g.poison();
    engine.run(engine.plan(step.batch), g.tensors);
    g.download(step);
    return distance_to_ref(step);
  }
  void expect_masked_pages_unread(int32_t page_size, std::vector<Request> requests, const char* kernel);
};

/// A custom mask takes every third page from all rows: their ids are wild, as docs/variants.md allows. Plans that look at page ids would refuse them: they are
/// the device's alone.
void GpuStream::expect_masked_pages_unread(int32_t page_size, std::vector<Request> requests, const char* kernel) {
  Step step;
  step.spec = hopper_spec(Storage::paged, page_size, 2, 8);
  step.spec.variant.custom_mask = true;
  step.requests = std::move(requests);
  step.make();
  const int64_t width = int64_t(step.spec.num_kv_heads) * step.spec.head_dim_qk;
  for (size_t r = 0; r < step.requests.size(); ++r) {
    const Request q = step.requests[r];
    uint8_t* const bits = step.mask.data() + step.mask_indptr[r];
    for (int32_t p = 1; p * page_size < q.kv_len; p += 3) {
      int32_t& page = step.pages[size_t(step.list_indptr[r] + p)];
      for (int32_t t = p * page_size; t < std::min(q.kv_len, (p + 1) * page_size); ++t) {
        for (int32_t i = 0; i < q.q_len; ++i) {
          const int64_t bit = int64_t(i) * q.kv_len + t;
          bits[bit / 8] &= uint8_t(~(1u << bit % 8));
        }
        const int64_t slot = int64_t(page) * page_size + t % page_size;
        for (int64_t i = 0; i < width; ++i) step.k.set(slot * width + i, NAN), step.v.set(slot * width + i, NAN);
      }
      page = 0x7fffffff;
    }
  }
  EngineOptions o = options(kernel);
  o.check_pages = false;
  expect_right(step, o, std::string(kernel) + ", pages of " + std::to_string(page_size));
}

TEST_F(GpuStream, MaskedPagesOfBoxesAreNotAskedFor) {
  expect_masked_pages_unread(16, {{1, 130}, {3, 70}}, "sm90");
  expect_masked_pages_unread(16, {{60, 300}, {40, 170}}, "sm90");
  expect_masked_pages_unread(16, {{60, 300}, {1, 170}, {2, 33}}, "sm90");
}
TEST_F(GpuStream, MaskedPagesAreNotAskedForByFewRows) { expect_masked_pages_unread(3, {{1, 130}, {3, 70}}, "sm90"); }
TEST_F(GpuStream, MaskedPagesAreNotAskedForByManyRows) { expect_masked_pages_unread(3, {{60, 300}, {40, 170}}, "sm90"); }
TEST_F(GpuStream, MaskedPagesAreNotAskedForOnSm80) { expect_masked_pages_unread(3, {{60, 300}, {1, 170}, {2, 33}}, "sm80"); }

// A CTA goes from items of one kind to those of the other and back, and its barriers with it.
TEST_F(GpuStream, BothKindsInOneList) {
  for (const int32_t page_size : {16, 3, 1}) {
    const Storage storage = page_size == 1 ? Storage::ragged : Storage::paged;
    for (const int32_t ctas : {1, 2, 3, 5, 11}) {
      Step step;
      step.spec = hopper_spec(storage, page_size, 2, 8);
      step.requests = {{1, 200}, {70, 300}, {2, 0}, {1, 77}, {33, 33}, {3, 500}, {0, 10}, {40, 0}};
      step.make();
      expect_right(step, options("sm90", ctas), "pages of " + std::to_string(page_size) + ", " + std::to_string(ctas) + " CTAs");
    }
  }
}

// Policies that keep the order of requests, as the device's planner does: kinds change from item to item.
TEST_F(GpuStream, KindsThatChangeFromItemToItem) {
  for (const Policy policy : {Policy::stream, Policy::heap, Policy::none}) {
    for (const int32_t page_size : {16, 3}) {
      Step step;
      step.spec = hopper_spec(Storage::paged, page_size, 2, 8);
      for (int i = 0; i < 6; ++i) step.requests.push_back({1 + i % 2, 90 + 40 * i}), step.requests.push_back({20 + 9 * i, 60 + 50 * i});
      step.make();
      EngineOptions o = options("sm90", 2);
      o.policy = policy;
      expect_right(step, o, std::string(name_of(policy)) + ", pages of " + std::to_string(page_size));
    }
  }
}
TEST_F(GpuStream, BothKindsOfOtherConfigurations) {
  for (const int32_t ctas : {1, 2, 7}) {
    for (const int kind : {0, 1, 2, 3}) {
      Step step;
      step.spec = hopper_spec(Storage::paged, kind == 3 ? 5 : 16, 2, 8);
      if (kind == 0) step.spec.head_dim_qk = step.spec.head_dim_vo = 256;
      if (kind == 1) step.spec.variant.alibi = true;
      if (kind >= 2) step.spec.variant.custom_mask = true;
      step.requests = {{1, 200}, {70, 300}, {2, 0}, {1, 77}, {33, 33}, {3, 500}, {0, 10}, {40, 0}};
      step.make();
      expect_right(step, options("sm90", ctas), std::to_string(kind) + ", " + std::to_string(ctas) + " CTAs");
    }
  }
}

// Pages without boxes: long lists, which go round the rings of their kernels several times, and short ones, whose copies are still under way when a
// warp goes on to the next.
TEST_F(GpuStream, RowsOneByOne) {
  for (const int32_t page_size : {1, 2, 4, 5}) {
    for (const int kind : {0, 1, 2}) {
      Step step;
      step.spec = hopper_spec(Storage::paged, page_size, 2, 8);
      if (page_size == 2) step.spec.head_dim_qk = step.spec.head_dim_vo = 128;
      if (page_size == 1 && kind == 0) step.spec.kv_dtype = DType::e4m3, step.spec.head_dim_qk = step.spec.head_dim_vo = 128;
      if (kind == 0) step.requests = {{1, 700}, {2, 5}, {1, 16}, {1, 17}, {3, 0}, {1, 333}, {4, 1000}};
      if (kind == 1) step.requests = {{130, 900}, {64, 64}, {17, 70}, {90, 1}, {300, 310}};
      if (kind == 2) step.requests = {{1, 700}, {130, 600}, {2, 5}, {64, 64}, {1, 40}};
      step.make();
      expect_right(step, options("sm90", kind == 1 ? 1 : 2), "pages of " + std::to_string(page_size) + ", kind " + std::to_string(kind));
    }
  }
}

// fp8 heads come two together: behind the last of an odd number there is none.
TEST_F(GpuStream, OddHeadsTwoTogether) {
  for (const int32_t kv_heads : {1, 3}) {
    for (const int32_t ctas : {1, 4}) {
      Step step;
      step.spec = hopper_spec(Storage::ragged, 1, kv_heads, 4 * kv_heads);
      step.spec.kv_dtype = DType::e4m3, step.spec.head_dim_qk = step.spec.head_dim_vo = 128;
      step.requests = {{1, 37}, {2, 0}, {1, 1}, {3, 100}, {1, 15}};
      step.spare_pages = 0;
      step.make();
      expect_right(step, options("sm90", ctas), std::to_string(kv_heads) + " heads, " + std::to_string(ctas) + " CTAs");
    }
  }
}

// Queries of bf16 meet fp8 keys as f16, which has neither 2^60 nor 2^-60: some rows are that large or small, and the scale makes up for it.
TEST_F(GpuStream, QueriesThatF16HasNot) {
  for (const int log2 : {60, 20, -20, -60}) {
    for (const bool alibi : {false, true}) {
      Step step;
      step.spec = hopper_spec(Storage::paged, 16, 2, 8);
      step.spec.kv_dtype = DType::e4m3, step.spec.head_dim_qk = step.spec.head_dim_vo = 128;
      step.spec.variant.alibi = alibi;
      step.spec.sm_scale = float(std::ldexp(1.0 / std::sqrt(128.0), -log2));
      step.requests = {{1, 200}, {3, 90}, {2, 33}, {4, 500}};
      step.make();
      const int64_t dim = step.spec.head_dim_qk, rows = step.q.count() / dim;
      for (int64_t r = 0; r < rows; ++r) {
        const int by = r % 2 == 0 ? log2 : log2 > 0 ? 0 : log2 - 10;
        for (int64_t d = 0; d < dim; ++d) step.q.set(r * dim + d, float(std::ldexp(step.q.get(r * dim + d), by)));
      }
      expect_right(step, options("sm90", 3), "2^" + std::to_string(log2) + (alibi ? ", ALiBi" : ""));
    }
  }
}

// Keys turned on the way, between shared memory and the products or, where some dims stay or positions jump, in shared memory: f16 shows an angle that is
// wrong by a thousandth.
TEST_F(GpuStream, KeysTurnOnTheWay) {
  for (const RopeMode mode : {RopeMode::interleaved, RopeMode::half_split}) {
    for (const int32_t page_size : {16, 3, 1}) {
      for (const int kind : {0, 1, 2}) {
        Step step;
        step.spec = hopper_spec(page_size == 1 ? Storage::ragged : Storage::paged, page_size, 2, 8);
        step.spec.q_dtype = step.spec.kv_dtype = step.spec.o_dtype = DType::f16;
        step.spec.variant.rope.mode = mode;
        if (kind == 1) step.spec.variant.rope.rotary_dim = mode == RopeMode::interleaved ? 18 : 48;
        step.requests = {{1, 200}, {4, 700}, {2, 0}, {1, 15}, {1, 16}, {3, 129}, {0, 10}, {1, 1}};
        step.make();
        const std::vector<int32_t> first = {900, 1000000, 0, -40, 15, 126, 0, 0}, behind = {199, 696, 0, 14, 15, 126, 0, 0};
        if (kind != 2) step.spec.variant.range.causal = false, step.batch.q_pos0 = first.data();
        else step.batch.q_pos0 = behind.data();
        const std::string what = std::to_string(int(mode)) + ", pages of " + std::to_string(page_size) + ", kind " + std::to_string(kind);
        const Distance d = run_and_compare(step, options("sm90", kind == 0 ? 3 : 7));
        EXPECT_EQ(d.fault, "") << what;
        EXPECT_LE(d.whole, 8e-4) << what;
        EXPECT_LE(d.worst_row_floored, 4e-3) << what;
        EXPECT_LE(d.lse, 1e-3) << what;
      }
    }
  }
}

}  // namespace
}  // namespace kvloom::test
