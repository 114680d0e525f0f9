#include "kvloom/api/run_check.h"

#include "kvloom/api/param_binding.h"
#include "kvloom/api/tensor_check.h"
#include "kvloom/base/math.h"
#include "kvloom/support/check.h"

#include <cmath>

namespace kvloom::api {
namespace {

void check_rows(const PlanState& plan, const RunTensors& t) {
  const AttentionSpec& s = plan.spec;
  constexpr const char* remedy = " as planned; make a plan for these tensors";
  const auto check = [&](const Tensor& x, const char* name, const char* dims, int32_t dim, DType dtype, const char* dtype_from) {
    check_tensor(x, {"run", name, dims, dtype, 3, {plan.total_tokens, s.num_qo_heads, dim}, remedy, false, dtype_from});
  };
  check(t.q, "q", "[tokens, num_qo_heads, head_dim_qk]", s.head_dim_qk, s.q_dtype, " as spec.q_dtype says");
  check(t.o, "o", "[tokens, num_qo_heads, head_dim_vo]", s.head_dim_vo, s.o_dtype, " as spec.o_dtype says");
  check_writable(t.o, "run", "o");
  if (!t.lse.given()) return;
  require(s.variant.reduction == Reduction::softmax,
          "run: lse: got a tensor with reduction sum, wanted none; sigmoid attention has no LSE");
  check_tensor(t.lse, {"run", "lse", "[tokens, num_qo_heads]", DType::f32, 2, {plan.total_tokens, s.num_qo_heads}, remedy, true});
  check_writable(t.lse, "run", "lse");
}

void check_overlaps(const RunTensors& t) {
  for (const auto& [written, written_name] : {std::pair{&t.o, "o"}, std::pair{&t.lse, "lse"}}) {
    check_disjoint(*written, written_name, t.q, "q", "run");
    check_disjoint(*written, written_name, t.k, "k", "run");
    check_disjoint(*written, written_name, t.v, "v", "run");
  }
  check_disjoint(t.lse, "lse", t.o, "o", "run");
}

/// Refuses ids and tokens that K and V do not have.
void check_page_use(const PlanState& plan, const PageUse& use, int64_t num_pages) {
  const bool ragged = plan.spec.storage == Storage::ragged;
  if (use.max_id < num_pages && use.min_id >= 0) [[likely]]
    return;
  const int32_t request = request_reading(plan.spec, plan.view(), ragged ? use.max_id : use.max_entry);
  require(!ragged || use.max_id < num_pages,
          "run: k, v: got {} tokens, wanted at least {} (request {} ends there); the lengths and the tensors do not "
          "belong together",
          num_pages, use.max_id + 1, request);
  require(use.min_id >= 0, "run: pages[{}]: page id: got {}, wanted 0 .. {}", use.min_entry, use.min_id, num_pages - 1);
  require(use.max_id < num_pages, "run: pages[{}] (request {}): page id: got {}, wanted 0 .. {}; k and v have {} pages", use.max_entry,
          request, use.max_id, num_pages - 1, num_pages);
}

/// Sets the page ids of `p`: those given to run, else those the plan was made from; reads them again if they are elsewhere.
void take_pages(const PlanState& plan, const RunTensors& t, bool on_gpu, AttendParams& p) {
  if (plan.spec.storage == Storage::ragged) {
    require(!t.pages.given(), "run: pages: got page ids with ragged storage, wanted none; set spec.storage to paged");
    require(plan.planner < 0 || plan.use.max_id < p.kv.num_pages, "run: k, v: got {} tokens, wanted at least DeviceBatch.kv_tokens = {}", p.kv.num_pages,
            plan.use.max_id + 1);
    return check_page_use(plan, plan.use, p.kv.num_pages);
  }
  const bool known = plan.planner >= 0 && plan.pages.given();  // the plan was made from the device's own
  require(!on_gpu || t.pages.given() || known || plan.use.entries_end == 0,
          "run: pages: got none, wanted the page ids in device memory; the plan was made from the host's");
  p.pages = t.pages.given() ? t.pages : plan.pages;
  require(p.pages.size >= plan.use.entries_end,
          "run: pages: got {} entries, wanted at least {}; give the page ids that the plan was made from", p.pages.size,
          plan.use.entries_end);
  const bool same = on_gpu || (p.pages.data == plan.pages.data && p.pages.is_64 == plan.pages.is_64);
  if (!plan.ids_read) return;
  check_page_use(plan, same ? plan.use : find_page_use(plan.spec, plan.view(), p.pages, true), p.kv.num_pages);
}

/// A pointer that a feature of the variant needs, and that nothing else may bring.
void check_pointer(const void* p, bool wanted, const char* name, const char* feature) {
  require(!wanted || p != nullptr, "run: {}: got none, wanted an array; {} needs it", name, feature);
  require(wanted || p == nullptr, "run: {}: got an array, wanted none; without {} in the spec it would be ignored", name, feature);
}

void check_mask(const PlanState& plan, const RunTensors& t) {
  for (int32_t r = 0; r < plan.num_requests; ++r) {
    const int64_t bits = int64_t(plan.q_len[size_t(r)]) * plan.mask_columns[size_t(r)];
    const int64_t begin = t.mask_indptr[r], end = t.mask_indptr[r + 1];
    // Exact: a mask of another shape has another size, and a larger one is as wrong as a smaller one.
    require(begin >= 0 && end - begin == ceil_div<int64_t>(bits, 8),
            "run: mask_indptr: request {}: got {} bytes of mask at {}, wanted {} bytes for {} query tokens x {} keys", r, end - begin,
            begin, ceil_div<int64_t>(bits, 8), plan.q_len[size_t(r)], plan.mask_columns[size_t(r)]);
  }
}

VariantParams variant_params(const PlanState& plan, const RunTensors& t, bool on_gpu) {
  const VariantSpec& spec = plan.spec.variant;
  check_pointer(t.alibi_slopes, spec.alibi, "alibi_slopes", "variant.alibi");
  check_pointer(t.sink, spec.sink, "sink", "variant.sink");
  check_pointer(t.mask, spec.custom_mask, "mask", "variant.custom_mask");
  check_pointer(t.mask_indptr, spec.custom_mask, "mask_indptr", "variant.custom_mask");
  check_scales(t.scale, plan.spec.q_dtype, plan.spec.kv_dtype, plan.spec.num_kv_heads, "run", !on_gpu);
  if (spec.custom_mask && !on_gpu) check_mask(plan, t);
  VariantParams v;
  v.sm_scale = plan.spec.sm_scale > 0.0f ? plan.spec.sm_scale : float(1.0 / std::sqrt(double(plan.spec.head_dim_qk)));
  v.soft_cap = spec.soft_cap;
  v.sigmoid_bias = spec.sigmoid_bias;
  v.range = spec.range;
  v.rope = spec.rope;
  v.alibi_slopes = t.alibi_slopes;
  v.sink = t.sink;
  v.mask = t.mask;
  v.mask_indptr = t.mask_indptr;
  v.mask_kv_len = spec.custom_mask ? plan.mask_columns.data() : nullptr;
  v.scale = t.scale;
  v.user = bind_params(spec.user, t.params, {plan.spec.num_qo_heads, plan.spec.num_kv_heads, plan.num_requests});
  return v;
}

constexpr int64_t kGpuAlign = 16;  // bytes that a GPU kernel copies at a time

/// Addresses and strides that 16-byte copies can start at.
void check_vectors(const Tensor& t, const char* name) {
  const int64_t size = size_of(t.dtype);
  require(t.data == nullptr || reinterpret_cast<uintptr_t>(t.data) % kGpuAlign == 0,
          "run: {}: address: got {}, wanted a multiple of {} bytes; GPU kernels copy as much at a time", name, t.data, kGpuAlign);
  for (int32_t d = 0; d + 1 < t.ndim; ++d) {
    require(stride_of(t, d) * size % kGpuAlign == 0, "run: {}: stride[{}]: got {} elements of {} bytes, wanted a multiple of {} bytes",
            name, d, t.stride[d], size, kGpuAlign);
  }
}

/// Where the tensors say that they are (0: they don't), and on a GPU how they are aligned.
void check_places(const RunTensors& t, bool on_gpu) {
  for (const auto& [tensor, name] : {std::pair{&t.q, "q"}, {&t.k, "k"}, {&t.v, "v"}, {&t.o, "o"}, {&t.lse, "lse"}}) {
    require(
        tensor->device_type != (on_gpu ? kDlCpu : kDlCuda), "run: {}: device_type: got {} ({}), wanted {}", name, tensor->device_type,
        on_gpu ? "CPU" : "CUDA",
        on_gpu ? "device memory; copy the tensor to the device" : "host memory; copy the tensor to the host, or make the engine for cuda");
    if (on_gpu && tensor != &t.lse) check_vectors(*tensor, name);
  }
}

/// Every array that the kernel will read or write.
void check_addresses(const AttendParams& p, Span<const VariantParam> params, PointerCheck& pointers) {
  const VariantParams& v = p.variant;
  const std::pair<const void*, const char*> all[] = {{p.q, "q"},
                                                     {p.kv.k, "k"},
                                                     {p.kv.v, "v"},
                                                     {p.o, "o"},
                                                     {p.lse, "lse"},
                                                     {p.pages.data, "pages"},
                                                     {p.page_pos, "page_pos"},
                                                     {v.alibi_slopes, "alibi_slopes"},
                                                     {v.sink, "sink"},
                                                     {v.mask, "mask"},
                                                     {v.mask_indptr, "mask_indptr"},
                                                     {v.scale.k_per_head, "scale.k_per_head"},
                                                     {v.scale.v_per_head, "scale.v_per_head"}};
  for (const auto& [address, name] : all) pointers.check(address, "run", name);
  for (const VariantParam& param : params) {
    if (param.ndim > 0) pointers.check(param.data, "run: params", param.name);
  }
}

}  // namespace

void check_device_pointer(const void* p, int32_t device, const char* where, const char* name) {
  const runtime::PointerPlace place = runtime::place_of(p);
  require(place.memory != runtime::MemoryPlace::host,
          "{}: {}: got host memory ({}), or memory that was freed, wanted memory that the GPU can read; copy it to the device", where, name, p);
  require(
      place.memory != runtime::MemoryPlace::device || place.managed || place.device == device,
      "{}: {}: got memory of GPU {} ({}), wanted GPU {}, where the engine runs; copy it there, or make the engine with options.device = {}",
      where, name, place.device, p, device, place.device);
}

void check_host_pointer(const void* p, const char* where, const char* name) {
  const runtime::PointerPlace place = runtime::place_of(p);
  require(
      place.memory != runtime::MemoryPlace::device || place.managed,
      "{}: {}: got memory of GPU {} ({}), wanted host memory; lengths and page ids are read here: keep the host's own, or copy them first",
      where, name, place.device, p);
}

void PointerCheck::check(const void* p, const char* where, const char* name) {
  once(p, [&] { check_device_pointer(p, device_, where, name); });
}

void PointerCheck::check_batch(const Batch& b, bool reads_ids) {
  const std::pair<const void*, const char*> arrays[] = {{b.qo_indptr.data, "qo_indptr"},
                                                        {b.kv_len.data, "kv_len"},
                                                        {b.list_indptr.data, "list_indptr"},
                                                        {reads_ids ? b.pages.data : nullptr, "pages"},
                                                        {b.q_pos0, "q_pos0"},
                                                        {b.q_pos, "q_pos"},
                                                        {b.prefix, "prefix"}};
  for (const auto& array : arrays) once(array.first, [&] { check_host_pointer(array.first, "plan", array.second); });
}

void check_scales(const ScaleParams& s, DType q, DType kv, int32_t num_kv_heads, const char* where, bool arrays_here) {
  const auto check = [&](float value, const char* name, DType dtype) {
    require(std::isfinite(value) && value > 0.0f, "{}: scale.{}: got {}, wanted a finite number above 0", where, name, value);
    require(is_fp8(dtype) || value == 1.0f, "{}: scale.{}: got {} with {}, wanted 1; only fp8 tensors have a scale", where, name, value,
            name_of(dtype));
  };
  check(s.q, "q", q);
  check(s.k, "k", kv);
  check(s.v, "v", kv);
  for (const auto& [values, name] : {std::pair{s.k_per_head, "k_per_head"}, std::pair{s.v_per_head, "v_per_head"}}) {
    if (values == nullptr) continue;
    require(is_fp8(kv), "{}: scale.{}: got an array with {}, wanted none; only fp8 tensors have a scale", where, name, name_of(kv));
    for (int32_t h = 0; arrays_here && h < num_kv_heads; ++h) {
      require(std::isfinite(values[h]) && values[h] > 0.0f, "{}: scale.{}[{}]: got {}, wanted a finite number above 0", where, name, h,
              values[h]);
    }
  }
}

CacheView checked_cache(const Tensor& given, const char* where, const char* name, KvLayout layout, Storage storage, int32_t page_size,
                        int32_t num_kv_heads, int32_t dim, DType dtype) {
  require(layout == KvLayout::nhd || layout == KvLayout::hnd, "{}: layout: got {}, wanted nhd (0) or hnd (1)", where, int(layout));
  const bool nhd = layout == KvLayout::nhd;
  const auto check = [&](const Tensor& t, const char* dims, int32_t ndim, int64_t d0, int64_t d1, int64_t d2, int64_t d3) {
    check_tensor(t, {where, name, dims, dtype, ndim, {d0, d1, d2, d3}, "", false, " as spec.kv_dtype says"});
  };
  if (storage == Storage::ragged) {
    if (nhd) check(given, "[tokens, num_kv_heads, dim] (ragged, nhd)", 3, kAny, num_kv_heads, dim, 0);
    if (!nhd) check(given, "[num_kv_heads, tokens, dim] (ragged, hnd)", 3, num_kv_heads, kAny, dim, 0);
    const int32_t token = nhd ? 0 : 1;
    const int64_t step = token_stride_of(given, token, 1 - token, kGpuAlign);
    return {step, step, stride_of(given, 1 - token), given.shape[token]};
  }
  Tensor t = given;
  if (t.ndim == 3 && page_size == 1) {  // a pool of single slots, [slots, heads, dim]: a page dimension of one goes in between
    t = Tensor{t.data, t.dtype, 4, {t.shape[0], 1, t.shape[1], t.shape[2]}, {t.stride[0], 0, t.stride[1], t.stride[2]}};
    if (!nhd) {
      std::swap(t.shape[1], t.shape[2]);
      std::swap(t.stride[1], t.stride[2]);
    }
  }
  if (nhd) check(t, "[pages, page_size, num_kv_heads, dim] (paged, nhd)", 4, kAny, page_size, num_kv_heads, dim);
  if (!nhd) check(t, "[pages, num_kv_heads, page_size, dim] (paged, hnd)", 4, kAny, num_kv_heads, page_size, dim);
  const int32_t token = nhd ? 1 : 2;
  return {stride_of(t, 0), stride_of(t, token), stride_of(t, 3 - token), t.shape[0]};
}

AttendParams checked_params(const PlanState& plan, const RunTensors& t, Backend backend, PointerCheck* pointers) {
  const AttentionSpec& s = plan.spec;
  const bool on_gpu = backend == Backend::cuda;
  check_rows(plan, t);
  const CacheView k = checked_cache(t.k, "run", "k", t.layout, s.storage, s.page_size, s.num_kv_heads, s.head_dim_qk, s.kv_dtype);
  const CacheView v = checked_cache(t.v, "run", "v", t.layout, s.storage, s.page_size, s.num_kv_heads, s.head_dim_vo, s.kv_dtype);
  check_places(t, on_gpu);
  check_overlaps(t);
  AttendParams p;
  p.q = t.q.data;
  p.q_token = token_stride_of(t.q, 0, 1, kGpuAlign);
  p.q_head = stride_of(t.q, 1);
  p.o = t.o.data;
  p.o_token = token_stride_of(t.o, 0, 1, kGpuAlign);
  p.o_head = stride_of(t.o, 1);
  if (t.lse.given()) {
    p.lse = static_cast<float*>(t.lse.data);
    p.lse_token = token_stride_of(t.lse, 0, 1, 1);
    p.lse_head = stride_of(t.lse, 1);
  }
  p.kv = {t.k.data, t.v.data, k.page, k.token, k.head, v.page, v.token, v.head, min_of(k.num_pages, v.num_pages)};
  take_pages(plan, t, on_gpu, p);
  const bool has_pages = plan.pages.size > 0;  // a step without KV has no positions to point at
  check_pointer(t.page_pos, plan.kv_position == KvPosition::page_table && has_pages, "page_pos", "KvPosition::page_table");
  p.page_pos = t.page_pos;
  p.variant = variant_params(plan, t, on_gpu);
  p.bare_state = t.bare_state;
  if (on_gpu && pointers != nullptr) check_addresses(p, t.params, *pointers);
  return p;
}

}  // namespace kvloom::api
