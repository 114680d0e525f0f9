#include "tests/support/step.h"

#include "kvloom/api/param_binding.h"
#include "kvloom/contract/params.h"
#include "kvloom/ref/ref.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace kvloom::test {
namespace {

void make_tables(Step& s) {
  s.qo_indptr = {0};
  s.kv_len.clear();
  s.list_indptr = {0};
  s.mask_indptr = {0};
  const int32_t page_size = s.spec.storage == Storage::paged ? s.spec.page_size : 1;
  for (const Request& r : s.requests) {
    s.qo_indptr.push_back(s.qo_indptr.back() + r.q_len);
    s.kv_len.push_back(r.kv_len);
    s.list_indptr.push_back(s.list_indptr.back() + (r.kv_len + page_size - 1) / page_size);
    s.mask_indptr.push_back(s.mask_indptr.back() + (int64_t(r.q_len) * r.kv_len + 7) / 8);
  }
  s.pages.resize(size_t(s.list_indptr.back() + s.spare_pages));
  std::iota(s.pages.begin(), s.pages.end(), 0);
  std::shuffle(s.pages.begin(), s.pages.end(), std::mt19937(s.seed));
  s.pages.resize(size_t(s.list_indptr.back()));
}

void make_batch(Step& s) {
  const bool paged = s.spec.storage == Storage::paged;
  s.batch = {};
  s.batch.num_requests = int32_t(s.requests.size());
  s.batch.qo_indptr = IndexView(s.qo_indptr.data(), int64_t(s.qo_indptr.size()));
  s.batch.kv_len = IndexView(s.kv_len.data(), int64_t(s.kv_len.size()));
  s.batch.list_indptr = IndexView(s.list_indptr.data(), int64_t(s.list_indptr.size()));
  if (paged) s.batch.pages = IndexView(s.pages.data(), int64_t(s.pages.size()));
}

void make_tensors(Step& s) {
  const AttentionSpec& spec = s.spec;
  const int64_t tokens = s.qo_indptr.back(), pool = s.list_indptr.back() + s.spare_pages;
  const bool paged = spec.storage == Storage::paged;
  const auto cache = [&](int64_t dim) {
    return paged ? Array(spec.kv_dtype, {pool, spec.page_size, spec.num_kv_heads, dim})
                 : Array(spec.kv_dtype, {pool, spec.num_kv_heads, dim});
  };
  s.q = std::move(Array(spec.q_dtype, {tokens, spec.num_qo_heads, spec.head_dim_qk}).normal(s.seed + 1));
  s.k = cache(spec.head_dim_qk);
  s.v = cache(spec.head_dim_vo);
  std::mt19937 random(s.seed + 2);
  std::normal_distribution<float> x(0.0f, 1.0f);
  for (Array* a : {&s.k, &s.v}) {
    a->fill(NAN);
    const int64_t width = spec.num_kv_heads * a->t.shape[a->t.ndim - 1];
    for (size_t r = 0; r < s.requests.size(); ++r) {
      for (int32_t t = 0; t < s.requests[r].kv_len; ++t) {
        const int64_t slot = paged ? int64_t(s.pages[size_t(s.list_indptr[r] + t / spec.page_size)]) * spec.page_size + t % spec.page_size
                                   : s.list_indptr[r] + t;
        for (int64_t i = 0; i < width; ++i) a->set(slot * width + i, x(random));
      }
    }
  }
  s.o = Array(spec.o_dtype, {tokens, spec.num_qo_heads, spec.head_dim_vo});
  s.lse = Array(DType::f32, {tokens, spec.num_qo_heads});
}

void make_extras(Step& s) {
  const VariantSpec& v = s.spec.variant;
  std::mt19937 random(s.seed + 3);
  std::uniform_real_distribution<float> x(-1.0f, 1.0f);
  s.tensors = {};
  s.tensors.q = s.q;
  s.tensors.k = s.k;
  s.tensors.v = s.v;
  s.tensors.o = s.o;
  if (v.reduction == Reduction::softmax) s.tensors.lse = s.lse;
  s.slopes.clear();
  s.sinks.clear();
  for (int32_t h = 0; h < s.spec.num_qo_heads; ++h) s.slopes.push_back(0.1f * x(random)), s.sinks.push_back(2.0f * x(random));
  s.mask.resize(size_t(s.mask_indptr.back()));
  for (uint8_t& byte : s.mask) byte = uint8_t(random());
  if (v.alibi) s.tensors.alibi_slopes = s.slopes.data();
  if (v.sink) s.tensors.sink = s.sinks.data();
  if (v.custom_mask) s.tensors.mask = s.mask.data(), s.tensors.mask_indptr = s.mask_indptr.data();
}

AttendParams params_for_ref(const Step& s) {
  const RunTensors& t = s.tensors;
  const bool paged = s.spec.storage == Storage::paged, nhd = t.layout == KvLayout::nhd;
  AttendParams p;
  p.q = t.q.data, p.q_token = t.q.stride[0], p.q_head = t.q.stride[1];
  p.kv.k = t.k.data;
  p.kv.v = t.v.data;
  const int token = paged ? (nhd ? 1 : 2) : (nhd ? 0 : 1), head = paged ? 3 - token : 1 - token;
  p.kv.k_page = t.k.stride[paged ? 0 : token], p.kv.k_token = t.k.stride[token], p.kv.k_head = t.k.stride[head];
  p.kv.v_page = t.v.stride[paged ? 0 : token], p.kv.v_token = t.v.stride[token], p.kv.v_head = t.v.stride[head];
  p.pages = t.pages.given() ? t.pages : s.batch.pages;
  p.page_pos = t.page_pos;
  p.variant.alibi_slopes = t.alibi_slopes;
  p.variant.sink = t.sink;
  p.variant.mask = t.mask;
  p.variant.mask_indptr = t.mask_indptr;
  p.variant.mask_kv_len = s.kv_len.data();
  p.variant.scale = t.scale;
  p.variant.user = api::bind_params(s.spec.variant.user, t.params, {s.spec.num_qo_heads, s.spec.num_kv_heads, int64_t(s.requests.size())});
  p.bare_state = t.bare_state;
  return p;
}

}  // namespace

AttentionSpec small_spec() {
  AttentionSpec s;
  s.num_qo_heads = 4;
  s.num_kv_heads = 2;
  s.head_dim_qk = s.head_dim_vo = 64;
  s.variant.range.causal = true;
  return s;
}

void Step::make() {
  make_tables(*this);
  make_batch(*this);
  make_tensors(*this);
  make_extras(*this);
  poison();
}

void Step::poison() {
  o.fill(NAN);
  lse.fill(NAN);
}

Capacity Step::capacity() const {
  Capacity c;
  c.max_requests = batch.num_requests;
  c.max_query_tokens = qo_indptr.back();
  c.max_kv_tokens = std::accumulate(kv_len.begin(), kv_len.end(), int64_t(0));
  return c;
}

Distance distance_to_ref(const Step& step) {
  const AttentionSpec& spec = step.spec;
  const int64_t tokens = step.qo_indptr.back(), heads = spec.num_qo_heads, dim = spec.head_dim_vo;
  std::vector<ref::Row> rows;
  for (int32_t t = 0; t < tokens; ++t) {
    for (int32_t h = 0; h < heads; ++h) rows.push_back({t, h});
  }
  std::vector<double> o(rows.size() * size_t(dim)), lse(rows.size());
  ref::attend_rows(spec, step.batch, params_for_ref(step), {rows.data(), int64_t(rows.size())}, o.data(), lse.data());
  Distance d;
  double error = 0.0, norm = 0.0;
  for (size_t r = 0; r < rows.size(); ++r) {
    double row_error = 0.0, row_norm = 0.0;
    for (int64_t i = 0; i < dim; ++i) {
      const double want = o[r * size_t(dim) + size_t(i)], got = at(step.tensors.o, rows[r].token, rows[r].q_head, i);
      if (std::isnan(got) && d.fault.empty()) d.fault = "NaN at token " + std::to_string(rows[r].token);
      row_error += (got - want) * (got - want);
      row_norm += want * want;
    }
    if (row_norm == 0.0 && row_error != 0.0 && d.fault.empty()) d.fault = "not zero at token " + std::to_string(rows[r].token);
    if (row_norm > 0.0) d.worst_row = std::max(d.worst_row, std::sqrt(row_error / row_norm));
    d.worst_row_floored = std::max(d.worst_row_floored, std::sqrt(row_error) / (std::sqrt(row_norm) + 0.15 * std::sqrt(double(dim))));
    error += row_error;
    norm += row_norm;
    if (!step.tensors.lse.given()) continue;
    const double got = at(step.tensors.lse, rows[r].token, rows[r].q_head);
    if (std::isinf(lse[r]) || std::isinf(got) || std::isnan(got)) {
      if (got != lse[r] && d.fault.empty()) d.fault = "lse at token " + std::to_string(rows[r].token);
    } else {
      d.lse = std::max(d.lse, std::fabs(got - lse[r]) / std::max(1.0, std::fabs(lse[r])));
    }
  }
  d.whole = norm > 0.0 ? std::sqrt(error / norm) : 0.0;
  return d;
}

void expect_right(const Step& step, const std::string& what) {
  const Distance d = distance_to_ref(step);
  const DType t = step.spec.o_dtype;
  EXPECT_EQ(d.fault, "") << what;
  EXPECT_LE(d.whole, t == DType::f32 ? 2e-6 : t == DType::f16 ? 2.5e-4 : 1.9e-3) << what;
  EXPECT_LE(d.worst_row, t == DType::f32 ? 4e-6 : t == DType::f16 ? 4e-4 : 2.5e-3) << what;
  EXPECT_LE(d.lse, 2e-6) << what;
}

}  // namespace kvloom::test
