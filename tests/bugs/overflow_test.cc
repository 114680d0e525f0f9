// OVF: offsets past 2^31 and 2^32, in pools that only exist where they are touched.
#include "tests/bugs/bug_case.h"
#include "tests/bugs/sparse_memory.h"

#include "cli/check/random.h"
#include "kvloom/api/ops.h"
#include "tests/support/one_request.h"

#include <cmath>

namespace kvloom::bugs {
namespace {

using check::Stream;
using check::stream_value;

/// A decode step of one request whose pages stand anywhere in a pool of `num_pages`.
struct PoolStep {
  AttentionSpec spec;
  int64_t num_pages;
  int32_t kv_len;
  KvLayout layout = KvLayout::nhd;

  int64_t k_page() const { return int64_t(spec.page_size) * spec.num_kv_heads * spec.head_dim_qk; }

  /// The same numbers whatever the page ids: token j of the list holds stream values j.
  Output run(const std::vector<int64_t>& pages, Policy policy) const {
    const int64_t size = size_of(spec.kv_dtype), heads = spec.num_kv_heads, dim = spec.head_dim_qk, ps = spec.page_size;
    const SparseMemory k(num_pages * k_page() * size), v(num_pages * k_page() * size);
    EXPECT_TRUE(k.ok() && v.ok());
    for (int64_t j = 0; j < kv_len; ++j) {
      for (int64_t i = 0; i < heads * dim; ++i) {
        const int64_t at = pages[size_t(j / ps)] * k_page() + j % ps * heads * dim + i;
        store_from_float(k.as<char>(), spec.kv_dtype, at, stream_value(38, Stream::k, uint64_t(j * heads * dim + i)));
        store_from_float(v.as<char>(), spec.kv_dtype, at, stream_value(38, Stream::v, uint64_t(j * heads * dim + i)));
      }
    }
    std::vector<uint16_t> q(size_t(spec.num_qo_heads * dim));
    for (size_t i = 0; i < q.size(); ++i) q[i] = float_to_bf16(stream_value(38, Stream::q, i));
    Output out;
    out.o.resize(size_t(spec.num_qo_heads * spec.head_dim_vo));
    out.lse.resize(size_t(spec.num_qo_heads));
    const test::OneRequest one_request(1, kv_len);
    Batch batch = one_request.batch;
    batch.pages = IndexView(pages.data(), int64_t(pages.size()));
    RunTensors t;
    t.q = Tensor::dense(q.data(), DType::bf16, {1, spec.num_qo_heads, dim});
    t.k = Tensor::dense(k.as<char>(), spec.kv_dtype, {num_pages, ps, heads, dim});
    t.v = Tensor::dense(v.as<char>(), spec.kv_dtype, {num_pages, ps, heads, dim});
    t.o = Tensor::dense(out.o.data(), DType::f32, {1, spec.num_qo_heads, spec.head_dim_vo});
    t.lse = Tensor::dense(out.lse.data(), DType::f32, {1, spec.num_qo_heads});
    t.v.shape[3] = spec.head_dim_vo;
    t.pages = batch.pages;
    Engine engine(spec, {1, 1, kv_len, 0, 0}, with_policy(policy));
    engine.run(engine.plan(batch), t);
    return out;
  }
};

TEST(Overflow, B38_PageIdTimesPageStrideNeeds64Bits) {
  PoolStep step;
  step.spec.num_qo_heads = 16;  // MLA: latent 512 in pages of 32, a page stride of 16384 elements
  step.spec.num_kv_heads = 1;
  step.spec.head_dim_qk = step.spec.head_dim_vo = 512;
  step.spec.page_size = 32;
  step.spec.q_dtype = step.spec.kv_dtype = DType::bf16;
  step.kv_len = 70;
  step.num_pages = 1000001;
  for (const Policy policy : {Policy::stream, Policy::fixed_split}) {
    const Output low = step.run({0, 1, 2}, policy);
    EXPECT_TRUE(std::isfinite(low.o[0]) && low.o[0] != 0.0f);
    expect_same_bits(step.run({262143, 262144, 262145}, policy), low);  // either side of 2^32 elements
    expect_same_bits(step.run({1000000, 131072, 131071}, policy), low);
  }
}

TEST(Overflow, B39_KvOffsetsPastTwoToThe31AreOneBlockApart) {
  PoolStep step;
  step.spec.num_qo_heads = step.spec.num_kv_heads = 8;
  step.spec.head_dim_qk = step.spec.head_dim_vo = 128;
  step.spec.page_size = 16;
  step.spec.q_dtype = step.spec.kv_dtype = DType::bf16;
  step.kv_len = 31;
  step.num_pages = 140000;
  const Output low = step.run({5, 6}, Policy::stream);
  for (const int64_t edge : {65535, 131071, 32767})
    expect_same_bits(step.run({edge, edge + 1}, Policy::stream), low);  // 2^30, 2^31 elements
}

// Ragged K and V of 4.3 million tokens: byte and element offsets pass 2^32. The rows look at the far end only, through a window.
TEST(Overflow, B41_FourMillionKeysAndOutputsPastTwoToThe31) {
  const int32_t kv_len = 4300000, heads = 8, dim = 128, window = 300;
  Case c;
  c.spec.num_qo_heads = c.spec.num_kv_heads = heads;
  c.spec.head_dim_qk = c.spec.head_dim_vo = dim;
  c.spec.q_dtype = c.spec.kv_dtype = DType::bf16;
  c.spec.o_dtype = DType::f32;
  c.spec.storage = Storage::ragged;
  c.spec.page_size = 1;
  c.spec.variant.range = {true, window, -1};
  c.q_len = {2};
  c.kv_len = {kv_len};
  const int64_t row = heads * dim, q_pitch = int64_t(1) << 31;  // the second query and output row lie 2^31 elements on
  const SparseMemory k(kv_len * row * 2), v(kv_len * row * 2), q((q_pitch + row) * 2), o((q_pitch + row) * 4);
  ASSERT_TRUE(k.ok() && v.ok() && q.ok() && o.ok());
  for (int64_t j = kv_len - window - 2; j < kv_len; ++j) {
    for (int64_t i = 0; i < row; ++i) {
      k.as<uint16_t>()[j * row + i] = float_to_bf16(stream_value(41, Stream::k, uint64_t(j * row + i)));
      v.as<uint16_t>()[j * row + i] = float_to_bf16(stream_value(41, Stream::v, uint64_t(j * row + i)));
    }
  }
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t i = 0; i < row; ++i) q.as<uint16_t>()[t * q_pitch + i] = float_to_bf16(stream_value(41, Stream::q, uint64_t(t * row + i)));
  }
  const test::OneRequest one_request(2, kv_len);
  const Batch& batch = one_request.batch;
  RunTensors t;
  t.q = Tensor::dense(q.as<char>(), DType::bf16, {2, heads, dim});
  t.q.stride[0] = q_pitch;
  t.k = Tensor::dense(k.as<char>(), DType::bf16, {kv_len, heads, dim});
  t.v = Tensor::dense(v.as<char>(), DType::bf16, {kv_len, heads, dim});
  t.o = Tensor::dense(o.as<char>(), DType::f32, {2, heads, dim});
  t.o.stride[0] = q_pitch;
  AttendParams params;
  params.q = q.as<char>();
  params.q_token = q_pitch;
  params.q_head = dim;
  params.kv = {k.as<char>(), v.as<char>(), row, row, dim, row, row, dim, kv_len};
  std::vector<ref::Row> rows;
  for (int32_t i = 0; i < 2 * heads; ++i) rows.push_back({i / heads, i % heads});
  std::vector<double> ref_o(size_t(2 * row)), ref_lse(rows.size());
  ref::attend_rows(c.spec, batch, params, {rows.data(), int64_t(rows.size())}, ref_o.data(), ref_lse.data());
  for (const Policy policy : {Policy::none, Policy::heap, Policy::stream, Policy::fill, Policy::fixed_split}) {
    EngineOptions options = with_policy(policy);
    if (policy == Policy::fixed_split) options.split_tokens = 1 << 20;
    Engine engine(c.spec, {1, 2, kv_len, 0, 0}, options);
    engine.run(engine.plan(batch), t);
    std::vector<float> got(size_t(2 * row));
    for (int64_t i = 0; i < 2; ++i) std::memcpy(got.data() + i * row, o.as<float>() + i * q_pitch, size_t(row) * 4);
    EXPECT_EQ(check::compare(c, got, {}, ref_o, ref_lse).fault, "") << name_of(policy);
  }
}

// 32768 x 131072 mask bits: 2^32. Every row is windowed to the few keys around its own position, so the offsets are large and the work is
// not.
TEST(Overflow, B30_MaskBitsPastTwoToThe32) {
  const int32_t q_len = 32768, kv_len = 131072, dim = 16;
  Case c;
  c.spec.num_qo_heads = c.spec.num_kv_heads = 1;
  c.spec.head_dim_qk = c.spec.head_dim_vo = dim;
  c.spec.storage = Storage::ragged;
  c.spec.page_size = 1;
  c.spec.variant.range = {true, 7, -1};
  c.spec.variant.custom_mask = true;
  c.q_len = {q_len};
  c.kv_len = {kv_len};
  const int64_t mask_bytes = int64_t(q_len) * kv_len / 8;
  const SparseMemory mask(mask_bytes);
  ASSERT_TRUE(mask.ok());
  // Rows either side of bits 2^31 and 2^32, and the last: every other key of their window. All other rows keep nothing.
  const std::vector<int32_t> sampled{0, 16383, 16384, 32767};
  for (const int32_t i : sampled) {
    const int64_t p = int64_t(kv_len) - q_len + i;
    for (int64_t j = p - 7; j <= p; j += 2)
      mask.as<uint8_t>()[(int64_t(i) * kv_len + j) / 8] |= uint8_t(1 << ((int64_t(i) * kv_len + j) % 8));
  }
  std::vector<float> q(size_t(q_len) * dim), k(size_t(kv_len) * dim), v(k.size()), o(q.size());
  for (size_t i = 0; i < q.size(); ++i) q[i] = stream_value(30, Stream::q, i);
  for (size_t i = 0; i < k.size(); ++i) k[i] = stream_value(30, Stream::k, i), v[i] = stream_value(30, Stream::v, i);
  const test::OneRequest one_request(q_len, kv_len);
  const int64_t mask_indptr[] = {0, mask_bytes};
  const Batch& batch = one_request.batch;
  RunTensors t;
  t.q = Tensor::dense(q.data(), DType::f32, {q_len, 1, dim});
  t.k = Tensor::dense(k.data(), DType::f32, {kv_len, 1, dim});
  t.v = Tensor::dense(v.data(), DType::f32, {kv_len, 1, dim});
  t.o = Tensor::dense(o.data(), DType::f32, {q_len, 1, dim});
  t.mask = mask.as<uint8_t>();
  t.mask_indptr = mask_indptr;
  AttendParams params;
  params.q = q.data();
  params.q_token = params.q_head = dim;
  params.kv = {k.data(), v.data(), dim, dim, dim, dim, dim, dim, kv_len};
  params.variant.mask = mask.as<uint8_t>();
  params.variant.mask_indptr = mask_indptr;
  Engine engine(c.spec, {1, q_len, kv_len, 0, 0}, with_policy(Policy::automatic, 64));
  engine.run(engine.plan(batch), t);
  for (const int32_t i : sampled) {
    const ref::Row row{i, 0};
    std::vector<double> want(dim, 0.0);
    double lse = 0.0;
    ref::attend_rows(c.spec, batch, params, {&row, 1}, want.data(), &lse);
    ASSERT_TRUE(std::isfinite(lse));
    for (int32_t d = 0; d < dim; ++d) EXPECT_NEAR(o[size_t(i) * dim + size_t(d)], want[size_t(d)], 2e-6) << "row " << i;
  }
  for (const int32_t i : {1, 16382, 16385, 32766}) {
    for (int32_t d = 0; d < dim; ++d) ASSERT_EQ(o[size_t(i) * dim + size_t(d)], 0.0f) << "row " << i;
  }
}

// The other way that large pools are written: appending a token to a page past 2^32 elements.
TEST(Overflow, B38_AppendWritesWhereAttentionReads) {
  const int64_t num_pages = 300000, ps = 32, dim = 512;
  const SparseMemory k(num_pages * ps * dim * 2), v(num_pages * ps * dim * 2);
  ASSERT_TRUE(k.ok() && v.ok());
  std::vector<float> row(dim, 0.0f);
  for (size_t i = 0; i < row.size(); ++i) row[i] = stream_value(39, Stream::k, i);
  const int32_t request[] = {0}, pos[] = {33}, starts[] = {0};
  const int64_t pages[] = {7, 262145};
  AppendBatch batch;
  batch.num_tokens = 1;
  batch.request = request;
  batch.pos = pos;
  batch.num_requests = 1;
  batch.list_indptr = IndexView(starts, 1);
  batch.pages = IndexView(pages, 2);
  const Tensor x = Tensor::dense(row.data(), DType::f32, {1, 1, dim});
  append_kv(x, x, batch, Tensor::dense(k.as<char>(), DType::bf16, {num_pages, ps, 1, dim}),
            Tensor::dense(v.as<char>(), DType::bf16, {num_pages, ps, 1, dim}), KvLayout::nhd, int32_t(ps));
  for (int64_t d = 0; d < dim; ++d) {
    ASSERT_EQ(k.as<uint16_t>()[(262145 * ps + 1) * dim + d], float_to_bf16(row[size_t(d)]));
    ASSERT_EQ(v.as<uint16_t>()[(262145 * ps + 1) * dim + d], float_to_bf16(row[size_t(d)]));
  }
}

}  // namespace
}  // namespace kvloom::bugs
