#include "python/src/ops.h"

#include "python/src/errors.h"
#include "python/src/run_arg.h"

namespace kvloom::python {
namespace {

/// Where the first tensor is: there the operation runs, and there all others must be. On a GPU: in the framework's stream.
kvloom_op_options where_of(const TensorArg& first, nb::handle stream) {
  kvloom_op_options where;
  kvloom_op_options_init(&where, sizeof where);
  if (!first.given() || !first.place().cuda) return where;
  where.backend = KVLOOM_CUDA;
  where.device = first.place().device;
  where.stream = stream_of(stream, first);
  return where;
}

void require_beside(const TensorArg& t, const TensorArg& first) {
  if (t.given() && !t.is_at(first.place())) {
    raise_value_error(std::string("`") + t.name() + "`: expected it on " + place_text(first.place()) + " beside `" + first.name() +
                      "`, got " + t.describe() + "; move it there");
  }
}

void require_writable(const TensorArg& t) {
  if (t.read_only()) raise_value_error(std::string("`") + t.name() + "`: expected a tensor that may be written, got a read-only one");
}

void require_given(const TensorArg& t) {
  if (!t.given()) raise_type_error(std::string("`") + t.name() + "`: expected a tensor, got None");
}

template <class Call>
void call(Call&& call) {
  kvloom_status status;
  {
    nb::gil_scoped_release released;
    status = call();
  }
  check(status);
}

/// An operation that reads `tensors`: where their framework knows no stream, it is done when this returns.
template <class Call>
void call_at(const kvloom_op_options& where, std::initializer_list<const TensorArg*> tensors, Call&& operation) {
  call(operation);
  for (const TensorArg* t : tensors) {
    if (t->given() && t->streamless()) return wait_for_stream(where.device, where.stream);
  }
}

void merge_states(nb::handle o_a, nb::handle lse_a, nb::handle o_b, nb::handle lse_b, nb::handle out, nb::handle lse, nb::handle stream) {
  TensorArg oa, la, ob, lb, o, l;
  oa.take(o_a, "o_a");
  la.take(lse_a, "lse_a");
  ob.take(o_b, "o_b");
  lb.take(lse_b, "lse_b");
  o.take(out, "out");
  l.take(lse, "lse");
  for (const TensorArg* t : {&oa, &la, &ob, &lb, &o}) require_given(*t);
  for (const TensorArg* t : {&la, &ob, &lb, &o, &l}) require_beside(*t, oa);
  require_writable(o);
  require_writable(l);
  const kvloom_op_options where = where_of(oa, stream);
  call_at(where, {&oa, &la, &ob, &lb}, [&] { return kvloom_merge_states(oa.c(), la.c(), ob.c(), lb.c(), o.c(), l.c(), &where); });
}

void merge_states_n(nb::handle o_in, nb::handle lse_in, nb::handle indptr, nb::handle out, nb::handle lse, nb::handle stream) {
  TensorArg oi, li, o, l;
  oi.take(o_in, "o");
  li.take(lse_in, "lse");
  o.take(out, "out");
  l.take(lse, "lse_out");
  for (const TensorArg* t : {&oi, &li, &o}) require_given(*t);
  for (const TensorArg* t : {&li, &o, &l}) require_beside(*t, oi);
  require_writable(o);
  require_writable(l);
  IndexArg rows;
  rows.take(indptr, "indptr", oi.place());
  const kvloom_op_options where = where_of(oi, stream);
  call_at(where, {&oi, &li}, [&] {
    return rows.given() ? kvloom_merge_states_ragged(oi.c(), li.c(), rows.c(), o.c(), l.c(), &where)
                        : kvloom_merge_states_n(oi.c(), li.c(), o.c(), l.c(), &where);
  });
}

/// Token positions and such of an append: int32 where the operation runs.
const int32_t* per_token(IndexArg& index, nb::handle values, const char* name, int64_t tokens, Place place) {
  index.take(values, name, place);
  if (place.cuda && index.given() && index.c().bits != 32) {
    raise_type_error(std::string("`") + name + "`: expected int32 on " + place_text(place) + ", got int64");
  }
  return index.as_int32(tokens, "token");
}

/// A batch of appended tokens and what it points at.
struct AppendArg {
  kvloom_append_batch batch;
  IndexArg request, pos, rope_pos, list_indptr, pages, slots;

  void take(int64_t tokens, nb::handle request_in, nb::handle pos_in, nb::handle rope_pos_in, nb::handle pages_in,
            nb::handle list_indptr_in, nb::handle block_table, nb::handle slots_in, Place place) {
    kvloom_append_batch_init(&batch, sizeof batch);
    batch.num_tokens = tokens;
    batch.request = per_token(request, request_in, "request", tokens, place);
    batch.pos = per_token(pos, pos_in, "pos", tokens, place);
    batch.rope_pos = per_token(rope_pos, rope_pos_in, "rope_pos", tokens, place);
    slots.take(slots_in, "slots", place);
    if (place.cuda && slots.given() && slots.c().bits != 64) {
      raise_type_error("`slots`: expected int64 on " + place_text(place) + ", got int32");
    }
    batch.slots = slots.as_int64(tokens, "token");
    if (tokens > 0 && !slots.given() && !(request.given() && pos.given())) {
      raise_type_error(std::string("`") + (request.given() ? "pos" : "request") +
                       "`: expected where the tokens go, got None; give `request` and `pos` with a `block_table` (or `pages` and `list_indptr`), or `slots`");
    }
    list_indptr.take(list_indptr_in, "list_indptr", place);
    batch.list_indptr = list_indptr.c();
    const bool table = !block_table.is_none();
    if (table && (!pages_in.is_none() || list_indptr.given())) {
      raise_value_error("`block_table`: expected it alone, got `pages` or `list_indptr` as well; give one of the two forms");
    }
    pages.take(table ? block_table : pages_in, table ? "block_table" : "pages", place);
    if (!place.cuda) pages.close_gaps();
    batch.pages = pages.c();
    if (table) {
      if (pages.ndim() != 2)
        raise_value_error("`block_table`: expected [requests, entries], got " + std::to_string(pages.ndim()) + " dimensions");
      batch.table_stride = pages.row_stride() > 0 ? pages.row_stride() : 1;
      batch.num_requests = int32_t(pages.shape(0));
    } else if (list_indptr.given()) {
      batch.num_requests = int32_t(list_indptr.size());  // with an entry more, the last list is empty
    }
  }
};

void append_kv(nb::handle k_new, nb::handle v_new, nb::handle k, nb::handle v, nb::handle request, nb::handle pos, nb::handle rope_pos,
               nb::handle pages, nb::handle list_indptr, nb::handle block_table, nb::handle slots, nb::handle layout, nb::handle rope,
               nb::handle k_scale, nb::handle v_scale, nb::handle stream) {
  TensorArg kn, vn, kc, vc;
  kn.take(k_new, "k_new");
  vn.take(v_new, "v_new");
  kc.take(k, "k");
  vc.take(v, "v");
  require_given(kn);
  require_given(kc);
  for (const TensorArg* t : {&vn, &kc, &vc}) require_beside(*t, kn);
  require_writable(kc);
  require_writable(vc);
  if (kn.ndim() != 3) raise_value_error("`k_new`: expected [tokens, heads, head_dim], got " + kn.describe());
  const int32_t order = layout_of(word_of(layout, "layout").c_str());
  if (kc.ndim() != 4 && kc.ndim() != 3)
    raise_value_error("`k`: expected [pages, page_size, heads, head_dim] (HND: heads before page_size), got " + kc.describe());
  const int32_t heads_at = order == KVLOOM_NHD ? 2 : 1;
  if (kc.ndim() == 4 && (kn.shape(1) != kc.shape(heads_at) || kn.shape(2) != kc.shape(3))) {
    raise_value_error("`k_new`: expected [" + std::to_string(kn.shape(0)) + ", " + std::to_string(kc.shape(heads_at)) + ", " +
                      std::to_string(kc.shape(3)) + "], heads and head_dim of `k` " + kc.describe() + ", got " + kn.describe());
  }
  const auto page_size = int32_t(kc.ndim() == 3 ? 1 : kc.shape(order == KVLOOM_NHD ? 1 : 2));
  AppendArg batch;
  batch.take(kn.shape(0), request, pos, rope_pos, pages, list_indptr, block_table, slots, kn.place());
  const kvloom_rope r = rope_arg(rope);
  kvloom_scales scales;
  kvloom_scales_init(&scales, sizeof scales);
  scales.k = number_of(k_scale, "k_scale");
  scales.v = number_of(v_scale, "v_scale");
  const kvloom_op_options where = where_of(kn, stream);
  call_at(where, {&kn, &vn}, [&] { return kvloom_append_kv(kn.c(), vn.c(), &batch.batch, kc.c(), vc.c(), order, page_size, &r, &scales, &where); });
}

void append_slots(nb::handle request, nb::handle pos, nb::handle pages, nb::handle list_indptr, nb::handle block_table, int32_t page_size,
                  int64_t num_pages, nb::handle out) {
  TensorArg o;
  o.take(out, "out");
  require_given(o);
  if (!o.is_type(dlpack::kInt, 64) || o.ndim() != 1 || !o.contiguous() || !o.on_host() || o.read_only()) {
    raise_value_error("`out`: expected a writable, contiguous int64 array [tokens] on cpu, got " + o.describe());
  }
  AppendArg batch;
  batch.take(o.size(), request, pos, nb::none(), pages, list_indptr, block_table, nb::none(), {});
  check(kvloom_append_slots(&batch.batch, page_size, num_pages, static_cast<int64_t*>(const_cast<void*>(o.data()))));
}

void apply_rope(nb::handle x, nb::handle pos, nb::handle rope, nb::handle stream) {
  TensorArg t;
  t.take(x, "x");
  require_given(t);
  require_writable(t);
  if (t.ndim() != 3) raise_value_error("`x`: expected [tokens, heads, head_dim], got " + t.describe());
  IndexArg p;
  const int32_t* const positions = per_token(p, pos, "pos", t.shape(0), t.place());
  if (positions == nullptr) raise_type_error("`pos`: expected a position for each token, got None");
  const kvloom_rope r = rope_arg(rope);
  const kvloom_op_options where = where_of(t, stream);
  call([&] { return kvloom_apply_rope(t.c(), positions, &r, &where); });
}

/// The packed bits of one mask.
nb::bytearray pack_mask(nb::handle mask) {
  TensorArg m;
  m.take(mask, "mask");
  require_given(m);
  if (!(m.is_type(dlpack::kBool, 8) || m.is_type(dlpack::kUint, 8)) || m.ndim() != 2 || !m.contiguous() || !m.on_host()) {
    raise_value_error("`mask`: expected a contiguous bool or uint8 array [rows, columns] on cpu, got " + m.describe());
  }
  std::string bits(size_t((m.size() + 7) / 8), '\0');
  check(kvloom_pack_mask(static_cast<const uint8_t*>(m.data()), m.shape(0), m.shape(1), reinterpret_cast<uint8_t*>(bits.data()),
                         int64_t(bits.size())));
  return nb::bytearray(bits.data(), bits.size());
}

}  // namespace

void bind_ops(nb::module_& m) {
  using nb::arg;
  const nb::kw_only kw;
  m.def("merge_states", &merge_states, arg("o_a").none(), arg("lse_a").none(), arg("o_b").none(), arg("lse_b").none(), kw,
        arg("out").none(), arg("lse").none(), arg("stream").none());
  m.def("merge_states_n", &merge_states_n, arg("o").none(), arg("lse").none(), arg("indptr").none(), kw, arg("out").none(),
        arg("lse_out").none(), arg("stream").none());
  m.def("append_kv", &append_kv, arg("k_new").none(), arg("v_new").none(), arg("k").none(), arg("v").none(), kw, arg("request").none(),
        arg("pos").none(), arg("rope_pos").none(), arg("pages").none(), arg("list_indptr").none(), arg("block_table").none(),
        arg("slots").none(), arg("layout").none(), arg("rope").none(), arg("k_scale").none(), arg("v_scale").none(), arg("stream").none());
  m.def("append_slots", &append_slots, arg("request").none(), arg("pos").none(), arg("pages").none(), arg("list_indptr").none(),
        arg("block_table").none(), arg("page_size"), arg("num_pages"), arg("out").none());
  m.def("apply_rope", &apply_rope, arg("x").none(), arg("pos").none(), arg("rope").none(), arg("stream").none());
  m.def("pack_mask", &pack_mask, arg("mask").none());
  m.def(
      "load_ops", [](int32_t device) { call([&] { return kvloom_load_ops(device); }); }, arg("device") = -1);
}

}  // namespace kvloom::python
