// attention() on the CPU: one step in one call; and what Python asks of tensors.
#include "python/src/block_sparse.h"
#include "python/src/errors.h"
#include "python/src/ops.h"
#include "python/src/run_arg.h"

namespace kvloom::python {
namespace {

nb::object attention(nb::handle spec, nb::handle options, nb::handle matrix, const BatchHandles& lengths, const RunHandles& tensors) {
  const SpecArg s(spec);
  OptionsArg o(options);
  const SpecFacts facts(*s.c());
  BatchArg batch;
  if (matrix.is_none()) {
    batch.take(lengths, facts.num_kv_heads, false);
  } else {
    batch.take(BlockSparse::of(matrix).batch(), matrix);
  }
  o.c()->backend = KVLOOM_CPU;
  RunArg run;
  run.take(tensors, {facts, Place{}, batch.total_tokens(), batch.num_requests(), batch.num_page_ids()});
  kvloom_status status;
  {
    nb::gil_scoped_release released;
    status = kvloom_attention(s.c(), batch.c(), run.c(), o.c());
  }
  check(status);
  return run.result();
}

/// The dims and the dtype of a tensor: what attention() makes its spec of.
nb::object shape_and_dtype(nb::handle tensor, const char* name) {
  TensorArg t;
  t.take(tensor, name);
  if (!t.given()) raise_type_error(std::string("`") + name + "`: expected a tensor, got None");
  if (t.dtype() < 0)
    raise_type_error(std::string("`") + name + "`: expected f32, f16, bf16, e4m3 or e5m2, got " + t.describe() + "; convert it");
  nb::list dims;
  for (int32_t d = 0; d < t.ndim(); ++d) dims.append(t.shape(d));
  return nb::make_tuple(nb::tuple(dims), dtype_name(t.dtype()));
}

/// The GPU that a tensor is on; None: the host.
nb::object gpu_of(nb::handle tensor, const char* name) {
  TensorArg t;
  t.take(tensor, name);
  if (!t.given() || !t.place().cuda) return nb::none();
  return nb::int_(t.place().device);
}

/// The dims and the type of an array of any numbers: "f32", "int32", "bool", ...
nb::object shape_and_type(nb::handle array, const char* name) {
  TensorArg t;
  t.take(array, name);
  if (!t.given()) raise_type_error(std::string("`") + name + "`: expected an array, got None");
  nb::list dims;
  for (int32_t d = 0; d < t.ndim(); ++d) dims.append(t.shape(d));
  return nb::make_tuple(nb::tuple(dims), t.type_text());
}

nb::object workspace_size(nb::handle spec, nb::handle capacity, nb::handle options) {
  const SpecArg s(spec);
  OptionsArg o(options);
  const kvloom_capacity c = capacity_arg(capacity);
  int64_t bytes = 0;
  kvloom_status status;
  {
    nb::gil_scoped_release released;
    status = kvloom_workspace_size(s.c(), &c, o.c(), &bytes);
  }
  check(status);
  return nb::int_(bytes);
}

}  // namespace

void bind_attention(nb::module_& m) {
  using nb::arg;
  m.def(
      "attention",
      [](nb::handle spec, nb::handle options, nb::handle matrix, nb::handle q, nb::handle k, nb::handle v, nb::handle qo_indptr,
         nb::handle kv_len, nb::handle pages, nb::handle list_indptr, nb::handle block_table, nb::handle q_pos0, nb::handle q_pos,
         nb::handle prefix, nb::handle out, nb::handle lse, bool return_lse, const char* layout, nb::handle alibi_slopes, nb::handle sink,
         nb::handle mask, nb::handle mask_indptr, nb::handle q_scale, nb::handle k_scale, nb::handle v_scale, nb::handle params) {
        const nb::object none = nb::none(), linear = nb::str("linear");
        return attention(spec, options, matrix,
                         {qo_indptr, kv_len, pages, list_indptr, block_table, q_pos0, q_pos, prefix, none, false, linear},
                         {q, k, v, out, lse, return_lse, none, none, layout, alibi_slopes, sink, mask, mask_indptr, q_scale, k_scale,
                          v_scale, false, params, none});
      },
      arg("spec"), arg("options"), arg("matrix").none(), arg("q").none(), arg("k").none(), arg("v").none(), nb::kw_only(),
      arg("qo_indptr").none(), arg("kv_len").none(), arg("pages").none(), arg("list_indptr").none(), arg("block_table").none(),
      arg("q_pos0").none(), arg("q_pos").none(), arg("prefix").none(), arg("out").none(), arg("lse").none(), arg("return_lse"),
      arg("layout"), arg("alibi_slopes").none(), arg("sink").none(), arg("mask").none(), arg("mask_indptr").none(), arg("q_scale").none(),
      arg("k_scale").none(), arg("v_scale").none(), arg("params").none());
  m.def("shape_and_dtype", &shape_and_dtype, arg("tensor").none(), arg("name"));
  m.def("shape_and_type", &shape_and_type, arg("array").none(), arg("name"));
  m.def("gpu_of", &gpu_of, arg("tensor").none(), arg("name"));
  m.def("workspace_size", &workspace_size, arg("spec"), arg("capacity"), arg("options"));
}

}  // namespace kvloom::python
