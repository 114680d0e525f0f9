// attend() against REF: lengths around every edge, cuts, threads, targets, dtypes, layouts, head dims, and what must not be touched.
#include "tests/support/attend_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace kvloom::cpu::test {
namespace {

AttentionSpec small_spec(int32_t qo_heads = 4, int32_t kv_heads = 2, int32_t dim = 64) {
  AttentionSpec s;
  s.num_qo_heads = qo_heads;
  s.num_kv_heads = kv_heads;
  s.head_dim_qk = s.head_dim_vo = dim;
  s.page_size = 16;
  s.variant.range.causal = true;
  return s;
}

/// Bounds on the error. REF reads the same rounded inputs, so only the output's type widens them.
struct Bounds {
  double whole = 2e-6;
  double worst_row = 4e-6;
  double lse = 2e-6;
};
Bounds bounds_of(DType o) {
  if (o == DType::bf16) return {1.9e-3, 2.5e-3, 2e-6};
  if (o == DType::f16) return {2.4e-4, 3.2e-4, 2e-6};  // an eighth of bf16's: three more bits
  return {};
}

void expect_right(const AttendCase& c, const Cut& cut, const std::string& what = "") {
  const Bounds bounds = bounds_of(c.spec.o_dtype);
  for (const Target target : available_targets()) {
    const Errors e = compare_with_ref(c, run(c, cut, target, 2));
    EXPECT_EQ(e.fault, "") << name_of(target) << " " << what;
    EXPECT_LE(e.whole, bounds.whole) << name_of(target) << " " << what;
    EXPECT_LE(e.worst_row, bounds.worst_row) << name_of(target) << " " << what;
    EXPECT_LE(e.lse, bounds.lse) << name_of(target) << " " << what;
  }
}

TEST(Attend, LengthsAroundEveryEdge) {
  AttendCase c;
  c.spec = small_spec();
  c.requests = {{1, 1}, {1, 0}, {0, 5}, {5, 3}, {7, 64}, {48, 48}, {49, 65}, {2, 257}, {3, 256}, {1, 255}, {30, 300}};
  c.make();
  for (const int32_t splits : {1, 3}) {
    for (const int32_t tile_rows : {1, 5, 48, 192}) {
      Cut cut;
      cut.splits = splits;
      cut.tile_rows = tile_rows;
      expect_right(c, cut, std::to_string(splits) + " splits, " + std::to_string(tile_rows) + " rows");
    }
  }
}

TEST(Attend, NothingToDo) {
  for (const std::vector<Lengths>& requests : {std::vector<Lengths>{}, {{0, 0}}, {{0, 9}, {0, 0}}, {{3, 0}}}) {
    AttendCase c;
    c.spec = small_spec();
    c.requests = requests;
    c.make();
    expect_right(c, Cut{});
  }
}

TEST(Attend, EveryThreadCountGivesTheSameBits) {
  AttendCase c;
  c.spec = small_spec(6, 2);
  c.requests = {{40, 300}, {1, 513}, {70, 70}, {3, 9}};
  c.make();
  Cut cut;
  cut.splits = 5;
  cut.ctas = 9;
  for (const Target target : available_targets()) {
    const Output one = run(c, cut, target, 1);
    EXPECT_TRUE(run(c, cut, target, 2) == one);
    EXPECT_TRUE(run(c, cut, target, 5) == one);
  }
}

TEST(Attend, SeveralHeadsAnItem) {
  AttendCase c;
  c.spec = small_spec(8, 4);
  c.requests = {{3, 200}, {9, 33}};
  c.make();
  for (const int32_t heads : {1, 2, 3, 4}) {
    for (const int32_t kernel_class : {0, 1}) {
      Cut cut;
      cut.heads = heads;
      cut.splits = 2;
      cut.tile_rows = 16;
      cut.kernel_class = kernel_class;
      expect_right(c, cut);
    }
  }
}

TEST(Attend, EveryDType) {
  for (const DType kv : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    for (const DType o : {DType::f32, DType::f16, DType::bf16}) {
      for (const int32_t dim : {64, 72}) {
        AttendCase c;
        c.spec = small_spec(4, 2, dim);
        c.spec.kv_dtype = kv;
        c.spec.o_dtype = o;
        c.spec.q_dtype = o == DType::f32 && kv == DType::bf16 ? DType::bf16 : (o == DType::f16 ? DType::f16 : DType::f32);
        c.requests = {{20, 90}, {1, 70}};
        c.k_scales = {0.5f, 1.25f};
        c.v_scales = {2.0f, 0.75f};
        c.make();
        c.params.variant.scale.q = 0.9f;
        Cut cut;
        cut.splits = 2;
        expect_right(c, cut, std::string(name_of(kv)) + " to " + name_of(o));
      }
    }
  }
}

TEST(Attend, EveryLayout) {
  for (const int32_t page_size : {0, 1, 2, 3, 5, 16, 17, 64, 256}) {  // 0: ragged
    for (const bool outside : {false, true}) {
      AttendCase c;
      c.spec = small_spec();
      c.spec.storage = page_size ? Storage::paged : Storage::ragged;
      c.spec.page_size = page_size ? page_size : 1;
      c.heads_outside_tokens = outside;
      c.page_ids_64 = outside;
      c.requests = {{5, 70}, {1, 33}, {64, 300}};
      c.make();
      Cut cut;
      cut.splits = 2;
      expect_right(c, cut, "page_size " + std::to_string(page_size));
    }
  }
}

TEST(Attend, B54_B57_EveryHeadDim) {
  const std::pair<int32_t, int32_t> dims[] = {{16, 16}, {17, 33},   {56, 56},   {72, 64},   {64, 72},   {80, 80},
                                              {96, 96}, {128, 128}, {192, 128}, {224, 224}, {320, 256}, {576, 512}};
  for (const auto& [qk, vo] : dims) {
    AttendCase c;
    c.spec = small_spec(5, 1);
    c.spec.head_dim_qk = qk;
    c.spec.head_dim_vo = vo;
    c.requests = {{13, 100}, {1, 65}};
    c.make();
    expect_right(c, Cut{}, std::to_string(qk) + "/" + std::to_string(vo));
  }
}

TEST(Attend, MlaValuesInsideKeys) {
  AttendCase c;
  c.spec = small_spec(16, 1);
  c.spec.head_dim_qk = 576;
  c.spec.head_dim_vo = 512;
  c.spec.kv_dtype = DType::bf16;
  c.requests = {{2, 130}, {1, 0}, {5, 64}};
  c.make();
  KvView& kv = c.params.kv;
  kv.v = kv.k;
  kv.v_page = kv.k_page;
  kv.v_token = kv.k_token;
  kv.v_head = kv.k_head;
  Cut cut;
  cut.splits = 2;
  expect_right(c, cut);
}

TEST(Attend, B50_B51_B53_EveryGroupSize) {
  const std::pair<int32_t, int32_t> heads[] = {{24, 4}, {28, 4}, {10, 2}, {64, 1}, {9, 3}, {3, 3}};
  for (const auto& [qo, kv] : heads) {
    AttendCase c;
    c.spec = small_spec(qo, kv, 32);
    c.spec.page_size = 1;
    c.requests = {{2, 235}, {17, 17}, {1, 53}};
    c.make();
    for (const int32_t rows : {7, 16, 64}) {  // no multiple of the group: its heads straddle tiles
      Cut cut;
      cut.tile_rows = rows;
      cut.splits = 2;
      expect_right(c, cut, std::to_string(qo) + "/" + std::to_string(kv));
    }
  }
}

/// Pages that have left the window are freed: their ids become wild and their bytes NaN, and nothing may change.
TEST(Attend, B24_PagesBeforeTheWindowAreNeverTouched) {
  for (const int32_t left : {0, 16, 100}) {
    AttendCase c;
    c.spec = small_spec();
    c.spec.variant.range.left = left;
    c.requests = {{1, 700}, {20, 400}, {3, 130}};
    c.make();
    const Cut cut;
    std::vector<Output> before;
    for (const Target target : available_targets()) before.push_back(run(c, cut, target, 2));
    expect_right(c, cut, "left " + std::to_string(left));
    for (int32_t r = 0; r < c.batch.num_requests; ++r) {
      const int32_t first_kept = c.requests[r].kv - c.requests[r].q - left;
      for (int32_t page = 0; page < first_kept / c.spec.page_size; ++page) {
        const int64_t id = c.pages64[c.list_indptr[r] + page];
        std::memset(c.k.data() + id * c.params.kv.k_page * 4, 0xff, c.params.kv.k_page * 4);
        std::memset(c.v.data() + id * c.params.kv.v_page * 4, 0xff, c.params.kv.v_page * 4);
        c.pages32[c.list_indptr[r] + page] = page % 2 ? -1 : std::numeric_limits<int32_t>::max();
      }
    }
    size_t t = 0;
    for (const Target target : available_targets()) EXPECT_TRUE(run(c, cut, target, 2) == before[t++]) << name_of(target);
  }
}

/// With a prefix (attention sinks) and a window, the pages between the two are freed as well.
TEST(Attend, PagesBetweenPrefixAndWindowAreNeverTouched) {
  AttendCase c;
  c.spec = small_spec();
  c.spec.variant.range.left = 64;
  c.requests = {{1, 900}, {4, 500}};
  c.prefix = {20, 5};
  c.make();
  const Cut cut;
  std::vector<Output> before;
  for (const Target target : available_targets()) before.push_back(run(c, cut, target, 2));
  expect_right(c, cut);
  for (int32_t r = 0; r < 2; ++r) {
    for (int32_t page = 2; page < (c.requests[r].kv - c.requests[r].q - 64) / 16; ++page) {
      const int64_t id = c.pages64[c.list_indptr[r] + page];
      std::memset(c.k.data() + id * c.params.kv.k_page * 4, 0xff, c.params.kv.k_page * 4);
      std::memset(c.v.data() + id * c.params.kv.v_page * 4, 0xff, c.params.kv.v_page * 4);
      c.pages32[c.list_indptr[r] + page] = -1;
    }
  }
  size_t t = 0;
  for (const Target target : available_targets()) EXPECT_TRUE(run(c, cut, target, 2) == before[t++]) << name_of(target);
}

TEST(Attend, B14_UnusedSlotsNeverChangeABit) {
  AttendCase nan;
  nan.spec = small_spec();
  nan.requests = {{1, 13}, {5, 37}, {60, 61}};
  nan.make();
  AttendCase zero = nan;  // the same with zeros for NaN
  for (std::vector<uint8_t>* data : {&zero.k, &zero.v}) {
    float* x = reinterpret_cast<float*>(data->data());
    for (size_t i = 0; i < data->size() / 4; ++i) x[i] = std::isnan(x[i]) ? 0.0f : x[i];
  }
  zero.params.kv.k = zero.k.data();
  zero.params.kv.v = zero.v.data();
  for (const Target target : available_targets()) EXPECT_TRUE(run(nan, Cut{}, target, 2) == run(zero, Cut{}, target, 2)) << name_of(target);
}

TEST(Attend, B08_LogitsFarBelowAnySentinel) {
  AttendCase c;
  c.spec = small_spec(16, 1, 128);
  c.spec.sm_scale = 1.0f;
  c.requests = {{1, 64}};
  c.make();
  float* q = reinterpret_cast<float*>(c.q.data());
  float* k = reinterpret_cast<float*>(c.k.data());
  std::fill(q, q + c.q.size() / 4, 1.0f);
  for (int64_t t = 0; t < 64; ++t) {
    const int64_t at = c.pages64[t / 16] * c.params.kv.k_page + t % 16 * c.params.kv.k_token;
    std::fill(k + at, k + at + 128, (t == 0 ? -95000.0f : -100000.0f) / 128);
  }
  for (const Target target : available_targets()) {
    const Output out = run(c, Cut{}, target, 1);
    EXPECT_NEAR(out.lse[0], -95000.0f, 0.1f);
    EXPECT_EQ(compare_with_ref(c, out).fault, "");
    EXPECT_LE(compare_with_ref(c, out).whole, 2e-6);
  }
}

TEST(Attend, B16_MeanOfTheValuesWhenAllScoresAreEqual) {
  for (const int32_t kv : {1, 100, 255, 257}) {
    AttendCase c;
    c.spec = small_spec(2, 2, 128);
    c.spec.variant.range.causal = false;
    c.requests = {{1, kv}};
    c.q_scale_of_data = 0.0f;
    c.make();
    for (const Target target : available_targets()) {
      const Output out = run(c, Cut{}, target, 1);
      EXPECT_NEAR(out.lse[0], std::log(double(kv)), 1e-6) << kv;
      EXPECT_LE(compare_with_ref(c, out).whole, 2e-6) << kv;
    }
  }
}

/// fixed_split: chunks folded by one item and chunks written as partials and merged are the same sum in the same order.
TEST(Attend, FoldedChunksAndWrittenChunksHaveTheSameBits) {
  AttendCase c;
  c.spec = small_spec();
  c.requests = {{5, 400}, {1, 129}, {33, 64}};
  c.make();
  Cut folded;
  folded.split_tokens = 64;
  Cut written = folded;
  written.chunked = true;
  Cut spread = written;
  spread.splits = 2;  // two items: one ends and the next begins inside a chunk, which then counts twice
  for (const Target target : available_targets()) {
    const Output a = run(c, folded, target, 1);
    EXPECT_TRUE(run(c, written, target, 2) == a) << name_of(target);
    EXPECT_EQ(compare_with_ref(c, a).fault, "");
    EXPECT_LE(compare_with_ref(c, a).whole, 2e-6);
  }
  expect_right(c, spread);
}

/// A row's bits are a function of the row's own keys, whatever shares its tile, wherever its tile begins.
TEST(Attend, B92_RowsDoNotDependOnTheirTile) {
  for (const int32_t left : {-1, 50}) {
    AttendCase c;
    c.spec = small_spec();
    c.spec.variant.range.left = left;
    c.requests = {{60, 500}, {31, 31}};
    c.make();
    Cut cut;
    cut.split_tokens = 128;
    for (const Target target : available_targets()) {
      cut.tile_rows = 120;
      const Output wide = run(c, cut, target, 2);
      for (const int32_t rows : {1, 10, 37}) {
        cut.tile_rows = rows;
        EXPECT_TRUE(run(c, cut, target, 2) == wide) << name_of(target) << " " << rows;
      }
    }
  }
}

TEST(Attend, QueriesWithPositionsOfTheirOwn) {
  AttendCase c;
  c.spec = small_spec();
  c.requests = {{6, 50}, {3, 20}};
  c.q_pos = {49, 10, -1, 30, 49, 0, 7, 19, 19};
  c.make();
  expect_right(c, Cut{});
  c.spec.variant.range.left = 5;
  expect_right(c, Cut{});
}

TEST(Attend, KeysWithPositionsOfTheirOwn) {
  for (const KvPosition how : {KvPosition::page_table, KvPosition::page_id}) {
    for (const int32_t left : {-1, 90}) {
      AttendCase c;
      c.spec = small_spec();
      c.spec.variant.range.left = left;
      c.spec.variant.alibi = true;
      c.spec.variant.rope.mode = RopeMode::half_split;
      c.requests = {{4, 180}, {1, 33}};
      c.batch.kv_position = how;
      c.page_pos.resize(64);
      for (int32_t i = 0; i < 64; ++i) c.page_pos[i] = (i * 37 % 64) * 16 - 200;
      c.q_pos = {300, 100, 20, 0, 250};
      c.make();
      Cut cut;
      cut.splits = 2;
      expect_right(c, cut);
    }
  }
}

}  // namespace
}  // namespace kvloom::cpu::test
