#include "kvloom/api/op_place.h"
#include "kvloom/api/run_check.h"
#include "kvloom/api/spec_check.h"
#include "kvloom/api/tensor_check.h"
#include "kvloom/base/math.h"
#include "kvloom/cpu/append_kv.h"
#include "kvloom/runtime/launch_cpu.h"
#include "kvloom/runtime/launch_ops.h"
#include "kvloom/support/check.h"

namespace kvloom {
namespace {

using api::check_disjoint;
using api::check_tensor;
using api::check_writable;
using api::kAny;
using api::OpPlace;
using api::stride_of;

TokenView token_view(const Tensor& t) { return {t.data, t.dtype, stride_of(t, 0), stride_of(t, 1), int32_t(t.shape[2])}; }

/// First entry of a request's list, and one past the last that it may use.
struct List {
  int64_t begin, end;
};
List list_of(const AppendBatch& b, int32_t request) {
  if (b.table_stride > 0) return {request * b.table_stride, (request + 1) * b.table_stride};
  return {b.list_indptr[request], request + 1 < b.list_indptr.size ? b.list_indptr[request + 1] : b.pages.size};
}

void check_batch(const AppendBatch& b, bool on_gpu) {
  require(b.num_tokens >= 0, "append_kv: batch.num_tokens: got {}, wanted at least 0", b.num_tokens);
  require(b.num_requests >= 0, "append_kv: batch.num_requests: got {}, wanted at least 0", b.num_requests);
  require(b.table_stride >= 0, "append_kv: batch.table_stride: got {}, wanted the width of the block table, or 0 for CSR", b.table_stride);
  if (b.num_tokens == 0) return;
  require(
      !on_gpu || b.slots != nullptr,
      "append_kv: batch.slots: got a null pointer on a GPU, wanted {} slots in its memory; append_slots makes them from request, pos and "
      "pages on the host",
      b.num_tokens);
  require(b.slots == nullptr || (b.request == nullptr && !b.pages.given()),
          "append_kv: batch.slots: got an array beside batch.request or batch.pages, wanted one or the other");
  if (b.slots != nullptr) return;
  require(b.request != nullptr, "append_kv: batch.request: got a null pointer, wanted {} request numbers", b.num_tokens);
  require(b.pos != nullptr, "append_kv: batch.pos: got a null pointer, wanted {} positions", b.num_tokens);
  require(b.pages.given() || b.pages.size == 0, "append_kv: batch.pages: got a null pointer, wanted page ids");
  if (b.table_stride > 0) {
    require(!b.list_indptr.given(), "append_kv: batch.list_indptr: got an array with a dense table, wanted none");
    require(b.pages.size / b.table_stride >= b.num_requests, "append_kv: batch.pages: got {} entries, wanted {} ({} requests x {})",
            b.pages.size, __int128(b.num_requests) * b.table_stride > INT64_MAX ? INT64_MAX : b.num_requests * b.table_stride,
            b.num_requests, b.table_stride);
    return;
  }
  require(b.list_indptr.given() && b.list_indptr.size >= b.num_requests, "append_kv: batch.list_indptr: got {} entries, wanted {} or {}",
          b.list_indptr.given() ? b.list_indptr.size : 0, b.num_requests, int64_t(b.num_requests) + 1);
}

/// The slot of every token, or -1 for padding, into `slots`. All are checked before anything is written.
void find_slots(const AppendBatch& b, int64_t num_pages, int32_t page_size, int64_t* slots) {
  for (int64_t i = 0; i < b.num_tokens; ++i) {
    if (b.slots != nullptr) {
      require(b.slots[i] >= -1 && b.slots[i] / page_size < num_pages, "append_kv: batch.slots[{}]: got {}, wanted 0 .. {}, or -1 to skip",
              i, b.slots[i], num_pages * page_size - 1);
      slots[i] = b.slots[i];
      continue;
    }
    const int32_t request = b.request[i], pos = b.pos[i];
    slots[i] = -1;
    if (request == -1) continue;
    require(request >= 0 && request < b.num_requests, "append_kv: batch.request[{}]: got {}, wanted 0 .. {}, or -1 for padding", i, request,
            b.num_requests - 1);
    require(pos >= 0, "append_kv: batch.pos[{}]: got {}, wanted at least 0", i, pos);
    const List list = list_of(b, request);
    require(list.begin >= 0 && list.end >= list.begin && list.end <= b.pages.size,
            "append_kv: batch.list_indptr: request {}: got entries [{}, {}), wanted a range within the {} entries of pages", request,
            list.begin, list.end, b.pages.size);
    require(pos / page_size < list.end - list.begin,
            "append_kv: token {}: position {} of request {}: got page {} of its list, wanted 0 .. {}; "
            "give the request a page for it first",
            i, pos, request, pos / page_size, list.end - list.begin - 1);
    const int64_t entry = list.begin + pos / page_size, page = b.pages[entry];
    require(page >= 0 && page < num_pages, "append_kv: token {}: batch.pages[{}]: got page id {}, wanted 0 .. {}", i, entry, page,
            num_pages - 1);
    slots[i] = page * page_size + pos % page_size;
  }
}

/// One side: what comes in fits the pages, and the pages can be written.
api::CacheView check_side(const Tensor& in, const char* in_name, const Tensor& out, const char* out_name, const AppendBatch& batch,
                          int64_t heads, KvLayout layout, int32_t page_size, bool converted) {
  require(api::is_dtype(in.dtype), "append_kv: {}: dtype: got an unknown value, wanted f32, f16, bf16 or the cache's", in_name);
  check_tensor(in, {"append_kv", in_name, "[num_tokens, heads, dim]", in.dtype, 3, {batch.num_tokens, heads, kAny}});
  require(api::is_dtype(out.dtype), "append_kv: {}: dtype: got an unknown value, wanted one of DType's", out_name);
  require(!is_fp8(in.dtype) || (in.dtype == out.dtype && !converted),
          "append_kv: {}: dtype: got {}, wanted f32, f16 or bf16; fp8 is copied into a cache of its own type, unscaled and unrotated, or "
          "not at "
          "all",
          in_name, name_of(in.dtype));
  require(in.shape[1] <= INT32_MAX && in.shape[2] <= INT32_MAX, "append_kv: {}: shape: got {}, wanted fewer heads and dims", in_name,
          api::shape_text(in));
  const api::CacheView view = api::checked_cache(out, "append_kv", out_name, layout, Storage::paged, page_size, int32_t(in.shape[1]),
                                                 int32_t(in.shape[2]), out.dtype);
  check_writable(out, "append_kv", out_name);
  check_disjoint(out, out_name, in, in_name, "append_kv");
  return view;
}

void append_on_gpu(AppendArgs& args, const AppendBatch& batch, const OpPlace& place) {
  args.slot = batch.slots;
  place.check_array(args.slot, "batch.slots");
  if (args.rope.mode != RopeMode::none) place.check_array(args.rope_pos, "batch.rope_pos");
  place.check_array(args.scale.k_per_head, "scale.k_per_head");
  place.check_array(args.scale.v_per_head, "scale.v_per_head");
  runtime::launch_append_kv(place.device(), args, place.stream());
}

}  // namespace

void append_slots(const AppendBatch& batch, int32_t page_size, int64_t num_pages, int64_t* slots) {
  require(page_size >= 1, "append_slots: page_size: got {}, wanted at least 1", page_size);
  require(num_pages >= 0 && num_pages <= INT64_MAX / page_size, "append_slots: num_pages: got {}, wanted 0 .. {}", num_pages,
          INT64_MAX / page_size);
  check_batch(batch, false);
  require(slots != nullptr || batch.num_tokens == 0, "append_slots: slots: got a null pointer, wanted room for {}", batch.num_tokens);
  find_slots(batch, num_pages, page_size, slots);
}

void append_kv(const Tensor& k_new, const Tensor& v_new, const AppendBatch& batch, const Tensor& k, const Tensor& v, KvLayout layout,
               int32_t page_size, const RopeSpec& rope, const ScaleParams& scale, const OpOptions& options) {
  const OpPlace place(options, "append_kv");
  require(page_size >= 1, "append_kv: page_size: got {}, wanted at least 1", page_size);
  check_batch(batch, place.on_gpu());
  const bool rotated = rope.mode != RopeMode::none, scaled_k = scale.k != 1.0f || scale.k_per_head,
             scaled_v = scale.v != 1.0f || scale.v_per_head;
  AppendArgs args;
  const api::CacheView k_view = check_side(k_new, "k_new", k, "k", batch, kAny, layout, page_size, rotated || scaled_k);
  api::check_rope(rope, int32_t(k_new.shape[2]), "append_kv");
  api::check_scales(scale, DType::f32, k.dtype, int32_t(k_new.shape[1]), "append_kv", !place.on_gpu());
  int64_t num_pages = k_view.num_pages;
  for (const auto& [tensor, name] : {std::pair{&k_new, "k_new"}, {&v_new, "v_new"}, {&k, "k"}, {&v, "v"}}) place.check(*tensor, name);
  require(v_new.given() == v.given(), "append_kv: v: got {} without {}, wanted both or neither", v.given() ? "v" : "v_new",
          v.given() ? "v_new" : "v");
  if (v.given()) {
    require(v.dtype == k.dtype, "append_kv: v: dtype: got {}, wanted {} as k", name_of(v.dtype), name_of(k.dtype));
    const api::CacheView v_view = check_side(v_new, "v_new", v, "v", batch, k_new.shape[1], layout, page_size, scaled_v);
    check_disjoint(v, "v", k, "k", "append_kv");
    check_disjoint(v, "v", k_new, "k_new", "append_kv");
    check_disjoint(k, "k", v_new, "v_new", "append_kv");
    num_pages = min_of(num_pages, v_view.num_pages);
    args.v_new = token_view(v_new);
    args.kv.v = v.data;
    args.kv.v_page = v_view.page, args.kv.v_token = v_view.token, args.kv.v_head = v_view.head;
  }
  args.num_tokens = batch.num_tokens;
  args.num_kv_heads = int32_t(k_new.shape[1]);
  args.page_size = page_size;
  args.k_new = token_view(k_new);
  args.kv.k = k.data;
  args.kv.k_page = k_view.page, args.kv.k_token = k_view.token, args.kv.k_head = k_view.head;
  args.kv.num_pages = num_pages;
  args.kv_dtype = k.dtype;
  args.rope_pos = batch.rope_pos ? batch.rope_pos : batch.pos;
  args.rope = rope;
  args.scale = scale;
  require(!rotated || args.rope_pos != nullptr || args.num_tokens == 0,
          "append_kv: batch.rope_pos: got a null pointer with batch.slots and rope.mode, wanted {} positions", args.num_tokens);
  if (place.on_gpu()) return append_on_gpu(args, batch, place);
  std::vector<int64_t> slots(static_cast<size_t>(batch.num_tokens));
  find_slots(batch, num_pages, page_size, slots.data());
  args.slot = slots.data();
  const int64_t elements = args.num_tokens * args.num_kv_heads * (args.k_new.dim + args.v_new.dim);
  cpu::append_kv(args, cpu::element_rows(cpu::best_target()), runtime::threads_for(elements).get());
}

void apply_rope(const Tensor& x, const int32_t* pos, const RopeSpec& rope, const OpOptions& options) {
  const OpPlace place(options, "apply_rope");
  require(x.dtype == DType::f32 || x.dtype == DType::f16 || x.dtype == DType::bf16, "apply_rope: x: dtype: got {}, wanted f32, f16 or bf16",
          name_of(x.dtype));
  check_tensor(x, {"apply_rope", "x", "[tokens, heads, dim]", x.dtype, 3, {kAny, kAny, kAny}});
  check_writable(x, "apply_rope", "x");
  require(x.shape[1] <= INT32_MAX && x.shape[2] <= INT32_MAX, "apply_rope: x: shape: got {}, wanted fewer heads and dims",
          api::shape_text(x));
  require(rope.mode != RopeMode::none, "apply_rope: rope.mode: got none (0), wanted interleaved (1) or half_split (2)");
  api::check_rope(rope, int32_t(x.shape[2]), "apply_rope");
  require(pos != nullptr || x.shape[0] == 0, "apply_rope: pos: got a null pointer, wanted {} positions", x.shape[0]);
  place.check(x, "x");
  place.check_array(pos, "pos");
  const RopeArgs args{token_view(x), x.shape[0], int32_t(x.shape[1]), pos, rope};
  if (place.on_gpu()) return runtime::launch_apply_rope(place.device(), args, place.stream());
  cpu::apply_rope(args, cpu::element_rows(cpu::best_target()), runtime::threads_for(x.shape[0] * x.shape[1] * x.shape[2]).get());
}

}  // namespace kvloom
