// Refusals of merge_states, append_kv, apply_rope, bsr and pack_mask, and that nothing was written.
#include "kvloom/api/ops.h"
#include "tests/support/tensors.h"

#include <gtest/gtest.h>

#include <functional>

namespace kvloom::test {
namespace {

void expect_refused(const char* says, const std::function<void()>& f) {
  try {
    f();
    ADD_FAILURE() << "accepted; wanted: " << says;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << "said: " << e.what() << "\nwanted: " << says;
  }
}

TEST(BadMerge, IsRefused) {
  Array o_a(DType::f32, {4, 2, 32}), o_b(DType::f32, {4, 2, 32}), o(DType::f32, {4, 2, 32});
  Array lse_a(DType::f32, {4, 2}), lse_b(DType::f32, {4, 2}), lse(DType::f32, {4, 2});
  const auto merge = [&](const std::function<void(Tensor&, Tensor&, Tensor&, Tensor&, Tensor&, Tensor&)>& spoil) {
    return [&, spoil] {
      Tensor a = o_a, la = lse_a, b = o_b, lb = lse_b, out = o, lout = lse;
      spoil(a, la, b, lb, out, lout);
      merge_states(a, la, b, lb, out, lout);
    };
  };
  using T = Tensor&;
  expect_refused("merge_states: o_b: shape: got [3, 2, 32], wanted [4, 2, 32]", merge([](T, T, T b, T, T, T) { b.shape[0] = 3; }));
  expect_refused("merge_states: o_a: got no tensor", merge([](T a, T, T, T, T, T) { a = {}; }));
  expect_refused("merge_states: lse_a: got no tensor", merge([](T, T la, T, T, T, T) { la = {}; }));
  expect_refused("merge_states: o: dtype: got e4m3", merge([](T, T, T, T, T o, T) { o.dtype = DType::e4m3; }));
  expect_refused("merge_states: lse_b: dtype: got f16, wanted f32", merge([](T, T, T, T lb, T, T) { lb.dtype = DType::f16; }));
  expect_refused("merge_states: lse: shape: got [4, 3], wanted [4, 2]", merge([](T, T, T, T, T, T l) { l.shape[1] = 3; }));
  expect_refused("merge_states: o_a: stride: got 2 along the last", merge([](T a, T, T, T, T, T) { a.stride[2] = 2; }));
  expect_refused("merge_states: o: stride: got", merge([](T, T, T, T, T o, T) { o.stride[0] = 32; }));
  expect_refused("merge_states: o: got memory that overlaps o_a", merge([](T a, T, T, T, T o, T) {
                   o.data = static_cast<float*>(a.data) + 64;  // the same rows, one later: not in place
                   o.shape[0] = 4;
                 }));
  expect_refused("merge_states: lse: got memory that overlaps o_b", merge([](T, T, T b, T, T, T l) { l.data = b.data; }));
  Array in(DType::f32, {4, 3, 2, 32}), lse_in(DType::f32, {4, 3, 2});
  expect_refused("merge_states_n: lse_in: shape: got [4, 2, 2], wanted [4, 3, 2]", [&] {
    Tensor l = lse_in;
    l.shape[1] = 2;
    merge_states_n(in, l, o, lse);
  });
  Array flat(DType::f32, {9, 2, 32}), lse_flat(DType::f32, {9, 2});
  const int32_t falls[] = {0, 3, 2, 4, 9}, past[] = {0, 3, 4, 5, 10}, negative[] = {-1, 3, 4, 5, 9};
  expect_refused("indptr[2]: got 2, wanted 3 .. 9", [&] { merge_states_ragged(flat, lse_flat, IndexView(falls, 5), o, lse); });
  expect_refused("indptr[4]: got 10, wanted 5 .. 9", [&] { merge_states_ragged(flat, lse_flat, IndexView(past, 5), o, lse); });
  expect_refused("indptr[0]: got -1", [&] { merge_states_ragged(flat, lse_flat, IndexView(negative, 5), o, lse); });
  expect_refused("indptr: got 4 entries, wanted 5", [&] { merge_states_ragged(flat, lse_flat, IndexView(falls, 4), o, lse); });
}

TEST(BadAppend, IsRefusedAndNothingIsWritten) {
  Array k_new(DType::f32, {3, 2, 32}), v_new(DType::f32, {3, 2, 16}), k(DType::f32, {4, 8, 2, 32}), v(DType::f32, {4, 8, 2, 16});
  k_new.fill(1.0f);
  v_new.fill(1.0f);
  const std::vector<int32_t> request{0, 1, 1}, pos{9, 3, 4}, pages{2, 0, 3};
  const std::vector<int64_t> indptr{0, 2, 3};
  struct Call {
    Tensor k_new, v_new, k, v;
    AppendBatch b;
    std::vector<int32_t> request, pos, pages;
    std::vector<int64_t> indptr;
    int32_t page_size;
    RopeSpec rope;
    ScaleParams scale;
  };
  const auto append = [&](const std::function<void(Call&)>& spoil) {
    return [&, spoil] {
      Call c{k_new, v_new, k, v, {}, request, pos, pages, indptr, 8, {}, {}};
      c.b = {3, c.request.data(), c.pos.data(), nullptr, 2, IndexView(c.indptr.data(), 3), IndexView(c.pages.data(), 3), 0};
      spoil(c);
      append_kv(c.k_new, c.v_new, c.b, c.k, c.v, KvLayout::nhd, c.page_size, c.rope, c.scale);
    };
  };
  expect_refused("token 2: batch.pages[2]: got page id -1, wanted 0 .. 3", append([](Call& c) { c.pages[2] = -1, c.request[1] = -1; }));
  expect_refused("batch.pages[1]: got page id 4, wanted 0 .. 3", append([](Call& c) { c.pages[1] = 4; }));
  expect_refused("position 8 of request 1: got page 1 of its list, wanted 0 .. 0", append([](Call& c) { c.pos[2] = 8; }));
  expect_refused("batch.pos[1]: got -3", append([](Call& c) { c.pos[1] = -3; }));
  expect_refused("batch.request[0]: got 2, wanted 0 .. 1, or -1", append([](Call& c) { c.request[0] = 2; }));
  expect_refused("batch.request: got a null pointer", append([](Call& c) { c.b.request = nullptr; }));
  expect_refused("batch.list_indptr: request 1: got entries [2, 9)", append([](Call& c) { c.indptr[2] = 9; }));
  expect_refused("batch.list_indptr: got 0 entries", append([](Call& c) { c.b.list_indptr = {}; }));
  expect_refused("batch.pages: got 3 entries, wanted 4 (2 requests x 2)",
                 append([](Call& c) { c.b.list_indptr = {}, c.b.table_stride = 2; }));
  expect_refused("page_size: got 0", append([](Call& c) { c.page_size = 0; }));
  expect_refused("k: shape: got [4, 8, 2, 32], wanted [any, 4, 2, 32]", append([](Call& c) { c.page_size = 4; }));
  expect_refused("k_new: shape: got [2, 2, 32], wanted [3, any, any]", append([](Call& c) { c.k_new.shape[0] = 2; }));
  expect_refused("v_new: shape", append([](Call& c) { c.v_new.shape[1] = 1; }));
  expect_refused("k_new: dtype: got e4m3", append([](Call& c) { c.k_new.dtype = DType::e4m3; }));
  expect_refused("v: dtype: got bf16, wanted f32 as k", append([](Call& c) { c.v.dtype = DType::bf16; }));
  expect_refused("v: got v_new without v", append([](Call& c) { c.v = {}; }));
  expect_refused("scale.k: got 2 with f32, wanted 1", append([](Call& c) { c.scale.k = 2.0f; }));
  expect_refused("rope.rotary_dim: got 34", append([](Call& c) { c.rope = {RopeMode::interleaved, 34}; }));
  expect_refused("k: got memory that overlaps k_new", append([](Call& c) { c.k_new.data = static_cast<float*>(c.k.data) + 40; }));
  expect_refused("v: got memory that overlaps k", append([](Call& c) { c.v.data = c.k.data; }));
  for (const Array* cache : {&k, &v}) {
    for (int64_t i = 0; i < cache->count(); ++i) ASSERT_EQ(cache->get(i), 0.0f);
  }
  append([](Call&) {})();
  EXPECT_EQ(k.get((0 * 8 + 1) * 64), 1.0f);  // request 0, token 9: page 0, slot 1
}

TEST(BadRope, IsRefused) {
  Array x(DType::f32, {3, 2, 32});
  const int32_t pos[] = {0, 1, 2};
  expect_refused("rope.mode: got none", [&] { apply_rope(x, pos, {}); });
  expect_refused("pos: got a null pointer, wanted 3", [&] { apply_rope(x, nullptr, {RopeMode::interleaved}); });
  expect_refused("x: shape: got [-1, 2, 32], wanted [any, any, any]", [&] {
    Tensor t = x;
    t.shape[0] = -1;
    apply_rope(t, pos, {RopeMode::interleaved});
  });
  expect_refused("x: shape: got [9223372036854775807, 9223372036854775807, 32]", [&] {
    apply_rope(Tensor::dense(x.t.data, DType::f32, {INT64_MAX, INT64_MAX, 32}), pos, {RopeMode::interleaved});
  });
  AppendBatch batch;
  int64_t slots[1] = {};
  expect_refused("append_slots: num_pages: got -1, wanted 0 .. ", [&] { append_slots(batch, 16, -1, slots); });
  expect_refused("append_slots: num_pages: got 9223372036854775807, wanted 0 .. ", [&] { append_slots(batch, 16, INT64_MAX, slots); });
  expect_refused("x: dtype: got e5m2", [&] { apply_rope(Array(DType::e5m2, {3, 2, 32}), pos, {RopeMode::interleaved}); });
  expect_refused("rope.rotary_dim: got 0, wanted an even number", [&] {
    apply_rope(Array(DType::f32, {3, 2, 31}), pos, {RopeMode::interleaved});
  });
}

TEST(BadBsr, IsRefused) {
  const int32_t indptr[] = {0, 2, 3}, indices[] = {0, 2, 1}, twice[] = {2, 2, 1}, outside[] = {0, 3, 1}, falls[] = {0, 2, 1};
  expect_refused("indices[1]: got 3, wanted 0 .. 2", [&] { bsr_batch(2, 4, 4, 3, IndexView(indptr, 3), IndexView(outside, 3)); });
  expect_refused("indices[1]: got block column 2 a second time", [&] { bsr_batch(2, 4, 4, 3, IndexView(indptr, 3), IndexView(twice, 3)); });
  expect_refused("indptr[1]: got [2, 1)", [&] { bsr_batch(2, 4, 4, 3, IndexView(falls, 3), IndexView(indices, 3)); });
  expect_refused("indptr: got 3 entries, wanted 4", [&] { bsr_batch(3, 4, 4, 3, IndexView(indptr, 3), IndexView(indices, 3)); });
  expect_refused("block: got 0 x 4", [&] { bsr_batch(2, 0, 4, 3, IndexView(indptr, 3), IndexView(indices, 3)); });
  expect_refused("matrix: got", [&] { bsr_batch(2, 1 << 30, 4, 3, IndexView(indptr, 3), IndexView(indices, 3)); });
  const std::vector<int32_t> rows{1, 2, 1, 1}, cols{3, 1, 2, -1};
  const std::vector<uint8_t> map(16, 1);
  expect_refused("block_cols[3]: got -1", [&] { variable_bsr_batch({rows.data(), 4}, {cols.data(), 4}, map.data()); });
  expect_refused("block_rows: KV head 1: got a sum of 2, wanted 3", [&] {
    variable_bsr_batch({rows.data(), 4}, {cols.data(), 2}, map.data(), 2);
  });
  expect_refused("block_cols: got 3 entries, wanted a multiple of 2", [&] {
    variable_bsr_batch({rows.data() + 2, 2}, {cols.data(), 3}, map.data(), 2);
  });
  expect_refused("map: got a null pointer", [&] { variable_bsr_batch({rows.data(), 2}, {cols.data(), 2}, nullptr); });
  std::vector<uint8_t> bits;
  expect_refused("pack_mask: mask: got a null pointer", [&] { pack_mask(nullptr, 2, 3, bits); });
  expect_refused("pack_mask: shape: got [-1, 3]", [&] { pack_mask(map.data(), -1, 3, bits); });
}

}  // namespace
}  // namespace kvloom::test
