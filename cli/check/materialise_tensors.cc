// Q, K, V, O and LSE of a case: strides, views and values.
#include "cli/check/materialise.h"
#include "cli/check/random.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvloom::check {
namespace {

/// Strides of [pages, page_size, heads, width] (or heads first), `pad` elements of nothing after every token, head and page.
KvStrides strides_of(const Case& c, int64_t pages, int64_t width, int64_t pad) {
  const int64_t heads = c.spec.num_kv_heads, page_size = c.page_size();
  KvStrides s;
  if (c.layout == KvLayout::nhd) {
    s.head = width + pad;
    s.token = heads * s.head + pad;
    s.page = c.spec.storage == Storage::ragged ? s.token : page_size * s.token + pad;
  } else if (c.spec.storage == Storage::ragged) {
    s.token = s.page = width + pad;
    s.head = pages * s.token + pad;
  } else {
    s.token = width + pad;
    s.head = page_size * s.token + pad;
    s.page = heads * s.head + pad;
  }
  return s;
}

/// Elements from the first to one past the last.
int64_t extent(const Case& c, int64_t pages, const KvStrides& s, int64_t dim) {
  if (pages <= 0) return 0;
  return (pages - 1) * s.page + (c.page_size() - 1) * s.token + (c.spec.num_kv_heads - 1) * s.head + dim;
}

Tensor kv_tensor(const Case& c, void* data, int64_t pages, const KvStrides& s, int64_t dim) {
  Tensor t;
  t.data = data;
  t.dtype = c.spec.kv_dtype;
  const bool hnd = c.layout == KvLayout::hnd;
  const int64_t heads = c.spec.num_kv_heads;
  int64_t shape[4] = {pages, hnd ? heads : c.page_size(), hnd ? c.page_size() : heads, dim};
  int64_t stride[4] = {s.page, hnd ? s.head : s.token, hnd ? s.token : s.head, 1};
  t.ndim = 4;
  if (c.spec.storage == Storage::ragged) {  // [tokens, heads, dim] or [heads, tokens, dim]
    t.ndim = 3;
    const int64_t tokens_first[3] = {pages, heads, dim}, heads_first[3] = {heads, pages, dim};
    const int64_t token_stride[3] = {s.token, s.head, 1}, head_stride[3] = {s.head, s.token, 1};
    std::copy_n(hnd ? heads_first : tokens_first, 3, shape);
    std::copy_n(hnd ? head_stride : token_stride, 3, stride);
  }
  std::copy_n(shape, t.ndim, t.shape);
  std::copy_n(stride, t.ndim, t.stride);
  return t;
}

Tensor rows_tensor(void* data, DType dtype, int64_t tokens, int64_t heads, int64_t dim, int64_t token_stride, int64_t head_stride) {
  Tensor t;
  t.data = data;
  t.dtype = dtype;
  t.ndim = dim > 0 ? 3 : 2;
  const int64_t shape[3] = {tokens, heads, dim}, stride[3] = {token_stride, head_stride, 1};
  std::copy_n(shape, t.ndim, t.shape);
  std::copy_n(stride, t.ndim, t.stride);
  return t;
}

}  // namespace

void CaseData::make_q() {
  const AttentionSpec& s = case_.spec;
  const int64_t tokens = case_.total_tokens(), heads = s.num_qo_heads, dim = s.head_dim_qk;
  int64_t token_stride = heads * dim, head_stride = dim, elements = tokens * heads * dim;
  if (case_.q_view == QView::fused_qkv) {
    token_stride = (heads + 2 * s.num_kv_heads) * dim;
    elements = tokens > 0 ? (tokens - 1) * token_stride + heads * dim : 0;
  } else if (case_.q_view == QView::head_major) {
    token_stride = dim;
    head_stride = tokens * dim;
  }
  q_ = GuardedBuffer(elements * size_of(s.q_dtype));
  q_.poison();
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t d = 0; d < dim; ++d) {
        const float x = case_.q_gain * stream_value(case_.seed, Stream::q, (t * heads + h) * dim + d);
        store_from_float(q_.data(), s.q_dtype, t * token_stride + h * head_stride + d, x);
      }
    }
  }
  tensors_.q = rows_tensor(q_.data(), s.q_dtype, tokens, heads, dim, token_stride, head_stride);
  params_.q = q_.data();
  params_.q_token = token_stride;
  params_.q_head = head_stride;
}

void CaseData::make_kv() {
  const AttentionSpec& s = case_.spec;
  const int64_t pages = lists_.num_pages, size = size_of(s.kv_dtype);
  Placement placement = case_.placement;
  if (placement == Placement::kv_in_page && s.storage == Storage::ragged) placement = Placement::kv_in_row;
  const int64_t pad = placement == Placement::padded ? case_.pad : 0, both = s.head_dim_qk + s.head_dim_vo;
  KvStrides k = strides_of(case_, pages, placement == Placement::kv_in_row ? both : s.head_dim_qk, pad);
  KvStrides v = strides_of(case_, pages, placement == Placement::kv_in_row ? both : s.head_dim_vo, pad);
  int64_t v_offset = 0;  // elements from K, where they share a buffer
  if (placement == Placement::kv_in_page) {
    v_offset = k.page;
    k.page = v.page = k.page + v.page;
  } else if (placement == Placement::kv_in_row) {
    v_offset = s.head_dim_qk;
  } else if (placement == Placement::mla) {
    v = k;
  }
  const int64_t k_extent = extent(case_, pages, k, s.head_dim_qk), v_extent = extent(case_, pages, v, s.head_dim_vo);
  const bool shared = placement != Placement::separate && placement != Placement::padded;
  k_ = GuardedBuffer((shared ? std::max(k_extent, pages > 0 ? v_offset + v_extent : 0) : k_extent) * size);
  k_.poison();
  if (!shared) v_ = GuardedBuffer(v_extent * size);
  v_.poison();
  char* v_data = shared ? k_.data() + (pages > 0 ? v_offset * size : 0) : v_.data();
  tensors_.k = kv_tensor(case_, k_.data(), pages, k, s.head_dim_qk);
  tensors_.v = kv_tensor(case_, v_data, pages, v, s.head_dim_vo);
  tensors_.layout = case_.layout;
  params_.kv = {k_.data(), v_data, k.page, k.token, k.head, v.page, v.token, v.head, pages};
}

// A value belongs to its place in the pool, not in memory: every layout of a case holds the same numbers.
void CaseData::fill_kv() {
  const AttentionSpec& s = case_.spec;
  const KvView& kv = params_.kv;
  const int64_t heads = s.num_kv_heads, page_size = case_.page_size();
  for (size_t i = 0; i < kept_.size(); ++i) {
    if (!kept_[i]) continue;
    const int64_t h = int64_t(i) % heads, slot = int64_t(i) / heads % page_size, page = int64_t(i) / heads / page_size;
    const int64_t k_at = page * kv.k_page + slot * kv.k_token + h * kv.k_head;
    for (int64_t d = 0; d < s.head_dim_qk; ++d) {
      store_from_float(const_cast<void*>(kv.k), s.kv_dtype, k_at + d, stream_value(case_.seed, Stream::k, i * s.head_dim_qk + d));
    }
    if (case_.placement == Placement::mla) continue;
    const int64_t v_at = page * kv.v_page + slot * kv.v_token + h * kv.v_head;
    for (int64_t d = 0; d < s.head_dim_vo; ++d) {
      store_from_float(const_cast<void*>(kv.v), s.kv_dtype, v_at + d, stream_value(case_.seed, Stream::v, i * s.head_dim_vo + d));
    }
  }
}

int64_t CaseData::slot_of(int32_t list, int64_t j) const {
  const std::vector<int64_t>& pages = lists_.lists[size_t(list)];
  if (case_.spec.storage == Storage::ragged) return pages[0] + j;
  return pages[size_t(j / case_.page_size())] * case_.page_size() + j % case_.page_size();
}

void CaseData::set_q(int64_t token, int32_t q_head, const std::vector<float>& row) {
  const int64_t at = token * params_.q_token + q_head * params_.q_head;
  for (size_t d = 0; d < row.size(); ++d) store_from_float(q_.data(), case_.spec.q_dtype, at + int64_t(d), row[d]);
}

void CaseData::set_k(int32_t list, int64_t j, int32_t kv_head, const std::vector<float>& row) {
  const KvView& kv = params_.kv;
  const int64_t slot = slot_of(list, j), page_size = case_.page_size();
  const int64_t at = slot / page_size * kv.k_page + slot % page_size * kv.k_token + kv_head * kv.k_head;
  for (size_t d = 0; d < row.size(); ++d) store_from_float(const_cast<void*>(kv.k), case_.spec.kv_dtype, at + int64_t(d), row[d]);
}

void CaseData::set_v(int32_t list, int64_t j, int32_t kv_head, const std::vector<float>& row) {
  const KvView& kv = params_.kv;
  const int64_t slot = slot_of(list, j), page_size = case_.page_size();
  const int64_t at = slot / page_size * kv.v_page + slot % page_size * kv.v_token + kv_head * kv.v_head;
  for (size_t d = 0; d < row.size(); ++d) store_from_float(const_cast<void*>(kv.v), case_.spec.kv_dtype, at + int64_t(d), row[d]);
}

void CaseData::clear_unkept() {
  if (k_.size() > 0) std::memset(k_.data(), 0, size_t(k_.size()));
  if (v_.size() > 0) std::memset(v_.data(), 0, size_t(v_.size()));
  fill_kv();
}

void CaseData::make_outputs() {
  const AttentionSpec& s = case_.spec;
  const int64_t tokens = case_.total_tokens(), heads = s.num_qo_heads, dim = s.head_dim_vo;
  int64_t token_stride = heads * dim, head_stride = dim, elements = tokens * heads * dim;
  if (case_.o_view == OView::every_other) {
    token_stride *= 2;
    elements = tokens > 0 ? (2 * tokens - 1) * heads * dim : 0;
  } else if (case_.o_view == OView::head_major) {
    token_stride = dim;
    head_stride = tokens * dim;
  }
  o_ = GuardedBuffer(elements * size_of(s.o_dtype));
  tensors_.o = rows_tensor(o_.data(), s.o_dtype, tokens, heads, dim, token_stride, head_stride);
  if (case_.want_lse && s.variant.reduction == Reduction::softmax) {
    lse_ = GuardedBuffer(tokens * heads * 4);
    const bool head_major = case_.lse_head_major;
    tensors_.lse = rows_tensor(lse_.data(), DType::f32, tokens, heads, 0, head_major ? 1 : heads, head_major ? tokens : 1);
  }
  poison_outputs();
}

void CaseData::poison_outputs() {
  o_.poison();
  lse_.poison();
}

std::string CaseData::stray_write() const {
  if (case_.o_view != OView::every_other) return "";  // the others have no gaps, and the pages around them are guarded
  const int64_t row = case_.spec.num_qo_heads * int64_t(case_.spec.head_dim_vo) * size_of(case_.spec.o_dtype);
  for (int64_t t = 0; t + 1 < case_.total_tokens(); ++t) {
    const char* gap = o_.data() + (2 * t + 1) * row;
    for (int64_t i = 0; i < row; ++i) {
      if (uint8_t(gap[i]) != 0xff)
        return "bytes between the output rows of tokens " + std::to_string(t) + " and " + std::to_string(t + 1) + " were written";
    }
  }
  return "";
}

std::vector<float> CaseData::read_o() const {
  const Tensor& t = tensors_.o;
  std::vector<float> x;
  x.reserve(size_t(t.shape[0] * t.shape[1] * t.shape[2]));
  for (int64_t i = 0; i < t.shape[0]; ++i) {
    for (int64_t h = 0; h < t.shape[1]; ++h) {
      for (int64_t d = 0; d < t.shape[2]; ++d) x.push_back(load_as_float(t.data, t.dtype, i * t.stride[0] + h * t.stride[1] + d));
    }
  }
  return x;
}

std::vector<float> CaseData::read_lse() const {
  const Tensor& t = tensors_.lse;
  std::vector<float> x;
  if (!t.given()) return x;
  for (int64_t i = 0; i < t.shape[0]; ++i) {
    for (int64_t h = 0; h < t.shape[1]; ++h) x.push_back(static_cast<const float*>(t.data)[i * t.stride[0] + h * t.stride[1]]);
  }
  return x;
}

void CaseData::fill_batch() {
  const Case& c = case_;
  auto view = [&](const std::vector<int64_t>& wide, std::vector<int32_t>& narrow) {
    if (c.index64) return IndexView(wide.data(), int64_t(wide.size()));
    narrow.assign(wide.begin(), wide.end());
    return IndexView(narrow.data(), int64_t(narrow.size()));
  };
  batch_.num_requests = c.num_requests();
  batch_.qo_indptr = view(qo_indptr_, qo_indptr32_);
  batch_.kv_len =
      c.index64 ? IndexView(kv_len64_.data(), int64_t(kv_len64_.size())) : IndexView(case_.kv_len.data(), int64_t(c.kv_len.size()));
  if (table_.table_stride == 0) batch_.list_indptr = view(table_.list_indptr, list_indptr32_);
  if (c.spec.storage == Storage::paged) batch_.pages = view(table_.pages, pages32_);
  batch_.table_stride = table_.table_stride;
  batch_.lists_per_kv_head = c.lists_per_kv_head;
  batch_.kv_position = c.kv_position;
  if (!c.q_pos0.empty()) batch_.q_pos0 = case_.q_pos0.data();
  if (!c.q_pos.empty()) batch_.q_pos = case_.q_pos.data();
  if (!c.prefix.empty()) batch_.prefix = case_.prefix.data();
  batch_.groups = {groups_.data(), int64_t(groups_.size())};

  if (!c.batch_keeps_pages) tensors_.pages = batch_.pages;
  if (!table_.page_pos.empty()) tensors_.page_pos = table_.page_pos.data();
  if (alibi_.size() > 0) tensors_.alibi_slopes = alibi_.as<float>();
  if (sink_.size() > 0) tensors_.sink = sink_.as<float>();
  if (c.mask != MaskKind::none) {
    tensors_.mask = mask_.as<uint8_t>();
    tensors_.mask_indptr = mask_indptr_.data();
  }
  tensors_.scale = {c.q_scale, c.k_scale, c.v_scale, nullptr, nullptr};
  if (c.scale_per_head) {
    tensors_.scale.k_per_head = k_scales_.as<float>();
    tensors_.scale.v_per_head = v_scales_.as<float>();
  }
  tensors_.bare_state = c.bare_state;
  tensors_.params = user_params_.params();

  params_.pages = batch_.pages;
  params_.page_pos = tensors_.page_pos;
  params_.variant.alibi_slopes = tensors_.alibi_slopes;
  params_.variant.sink = tensors_.sink;
  params_.variant.mask = tensors_.mask;
  params_.variant.mask_indptr = tensors_.mask_indptr;
  params_.variant.mask_kv_len = mask_columns_.empty() ? nullptr : mask_columns_.data();
  params_.variant.scale = tensors_.scale;
  params_.bare_state = c.bare_state;
}

}  // namespace kvloom::check
