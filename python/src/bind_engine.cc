#include "python/src/block_sparse.h"
#include "python/src/engine.h"
#include "python/src/engine_docs.h"
#include "python/src/errors.h"
#include "python/src/run_arg.h"

#include <nanobind/stl/unique_ptr.h>

namespace kvloom::python {
namespace {

/// Keywords that are none: refused with what there is.
void refuse_unknown(const nb::kwargs& unknown, const char* function) {
  if (PyDict_Size(unknown.ptr()) == 0) [[likely]]
    return;
  const nb::object name = nb::borrow(unknown.keys()[0]);
  nb::module_::import_("kvloom._errors").attr("refuse_unknown")(function, name);
}

/// The last signature of a method, which takes what the first one does not: arguments that are missing, too many, or given twice. Under the same text,
/// so that help() prints it once.
auto refuse_others(const char* function) {
  return [function](Engine&, const nb::args& given, const nb::kwargs& named) {
    nb::module_::import_("kvloom._errors").attr("refuse_call")(function, given, named);
  };
}

Plan& plan_of(nb::handle plan) {
  Plan* p = nullptr;
  if (nb::isinstance<Plan>(plan) && !nb::inst_ready(plan)) {
    raise_type_error("`plan`: expected a kvloom.Plan that Engine.plan() has made, got one that nothing has; plans come from Engine.plan() alone");
  }
  if (!nb::try_cast<Plan*>(plan, p) || p == nullptr) raise_type_error("`plan`: expected a kvloom.Plan, got " + class_name(plan));
  return *p;
}

bool flag_of(nb::handle value, const char* name) {
  if (!PyBool_Check(value.ptr())) raise_type_error(std::string("`") + name + "`: expected True or False, got " + class_name(value));
  return value.ptr() == Py_True;
}

}  // namespace

void bind_engine(nb::module_& m) {
  using nb::arg;
  nb::class_<Plan>(m, "Plan", docs::kPlan)
      .def_prop_ro("total_tokens", &Plan::total_tokens, "Query tokens of the step: the rows that run wants of q and out.")
      .def_prop_ro("num_requests", &Plan::num_requests, "Requests of the step.")
      .def_prop_ro("graph_key", &Plan::graph_key, "What a captured CUDA graph must match to be replayed with this plan.")
      .def("explain", &Plan::explain, "The step as text.")
      .def("json", &Plan::json, "The step as JSON.")
      .def("svg", &Plan::svg, "The step as an SVG picture, a lane a CTA; notebooks show it by themselves.")
      .def("_repr_svg_", &Plan::svg, "The picture, for notebooks.")
      .def("__bytes__", &Plan::bytes, "The plan's bytes (docs/plan_format.md): equal input gives equal bytes.")
      .def("upload", &Plan::upload, arg("stream").none() = nb::none(), docs::kUpload);

  const auto none = nb::none();
  nb::class_<Engine>(m, "Engine", docs::kEngine)
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle>(), arg("spec"), arg("capacity"), arg("options"),
           arg("workspace").none())
      .def(
          "plan",
          [](Engine& e, nb::handle kv_len, nb::handle qo_indptr, nb::handle pages, nb::handle list_indptr, nb::handle block_table,
             nb::handle q_pos0, nb::handle q_pos, nb::handle prefix, nb::handle groups, nb::handle lists_per_kv_head,
             nb::handle kv_position, nb::kwargs unknown) {
            refuse_unknown(unknown, "plan");
            return e.plan({qo_indptr, kv_len, pages, list_indptr, block_table, q_pos0, q_pos, prefix, groups,
                           flag_of(lists_per_kv_head, "lists_per_kv_head"), kv_position});
          },
          arg("kv_len").none(), arg("qo_indptr").none() = none, nb::kw_only(), arg("pages").none() = none, arg("list_indptr").none() = none,
          arg("block_table").none() = none, arg("q_pos0").none() = none, arg("q_pos").none() = none, arg("prefix").none() = none,
          arg("groups").none() = none, arg("lists_per_kv_head").none() = false, arg("kv_position").none() = "linear", arg("unknown"),
          docs::kPlanStep)
      .def(
          "replan",
          [](Engine& e, nb::handle plan, nb::handle kv_len, nb::handle qo_indptr, nb::handle pages, nb::handle list_indptr,
             nb::handle block_table, nb::handle q_pos0, nb::handle q_pos, nb::handle prefix, nb::handle groups,
             nb::handle lists_per_kv_head, nb::handle kv_position, nb::kwargs unknown) {
            refuse_unknown(unknown, "replan");
            e.replan(plan_of(plan), {qo_indptr, kv_len, pages, list_indptr, block_table, q_pos0, q_pos, prefix, groups,
                                     flag_of(lists_per_kv_head, "lists_per_kv_head"), kv_position});
          },
          arg("plan").none(), arg("kv_len").none(), arg("qo_indptr").none() = none, nb::kw_only(), arg("pages").none() = none,
          arg("list_indptr").none() = none, arg("block_table").none() = none, arg("q_pos0").none() = none, arg("q_pos").none() = none,
          arg("prefix").none() = none, arg("groups").none() = none, arg("lists_per_kv_head").none() = false,
          arg("kv_position").none() = "linear", arg("unknown"), docs::kReplan)
      .def(
          "plan_on_device",
          [](Engine& e, nb::handle kv_len, nb::handle qo_indptr, nb::handle pages, nb::handle list_indptr, nb::handle block_table,
             nb::handle q_pos0, nb::handle prefix, nb::handle lists_per_kv_head, nb::handle kv_position, nb::handle num_tokens,
             nb::handle max_q_len, nb::handle kv_tokens, nb::handle stream, nb::kwargs unknown) {
            refuse_unknown(unknown, "plan_on_device");
            return e.plan_on_device({kv_len, qo_indptr, pages, list_indptr, block_table, q_pos0, prefix,
                                     flag_of(lists_per_kv_head, "lists_per_kv_head"), kv_position, num_tokens, max_q_len, kv_tokens,
                                     stream});
          },
          arg("kv_len").none(), arg("qo_indptr").none() = none, nb::kw_only(), arg("pages").none() = none, arg("list_indptr").none() = none,
          arg("block_table").none() = none, arg("q_pos0").none() = none, arg("prefix").none() = none,
          arg("lists_per_kv_head").none() = false, arg("kv_position").none() = "linear", arg("num_tokens").none() = none,
          arg("max_q_len").none() = none, arg("kv_tokens").none() = none, arg("stream").none() = none, arg("unknown"), docs::kPlanOnDevice)
      .def(
          "replan_on_device",
          [](Engine& e, nb::handle plan, nb::handle kv_len, nb::handle qo_indptr, nb::handle pages, nb::handle list_indptr,
             nb::handle block_table, nb::handle q_pos0, nb::handle prefix, nb::handle lists_per_kv_head, nb::handle kv_position,
             nb::handle num_tokens, nb::handle max_q_len, nb::handle kv_tokens, nb::handle stream, nb::kwargs unknown) {
            refuse_unknown(unknown, "replan_on_device");
            e.replan_on_device(plan_of(plan),
                               {kv_len, qo_indptr, pages, list_indptr, block_table, q_pos0, prefix,
                                flag_of(lists_per_kv_head, "lists_per_kv_head"), kv_position, num_tokens, max_q_len, kv_tokens, stream});
          },
          arg("plan").none(), arg("kv_len").none(), arg("qo_indptr").none() = none, nb::kw_only(), arg("pages").none() = none,
          arg("list_indptr").none() = none, arg("block_table").none() = none, arg("q_pos0").none() = none, arg("prefix").none() = none,
          arg("lists_per_kv_head").none() = false, arg("kv_position").none() = "linear", arg("num_tokens").none() = none,
          arg("max_q_len").none() = none, arg("kv_tokens").none() = none, arg("stream").none() = none, arg("unknown"),
          docs::kReplanOnDevice)
      .def(
          "check", [](Engine& e, nb::handle plan, nb::handle stream) { e.check_plan(plan_of(plan), stream); }, arg("plan").none(),
          arg("stream").none() = none, docs::kCheck)
      .def(
          "plan_sparse", [](Engine& e, nb::handle matrix) { return e.plan_sparse(BlockSparse::of(matrix), matrix); }, arg("matrix").none(),
          docs::kPlanSparse)
      .def(
          "run",
          [](Engine& e, nb::handle plan, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle return_lse,
             nb::handle pages, nb::handle page_pos, nb::handle layout, nb::handle alibi_slopes, nb::handle sink, nb::handle mask,
             nb::handle mask_indptr, nb::handle q_scale, nb::handle k_scale, nb::handle v_scale, nb::handle bare_state, nb::handle params,
             nb::handle stream, nb::kwargs unknown) {
            refuse_unknown(unknown, "run");
            const std::string order = word_of(layout, "layout");
            return e.run(plan_of(plan),
                         {q, k, v, out, lse, flag_of(return_lse, "return_lse"), pages, page_pos, order.c_str(), alibi_slopes, sink, mask,
                          mask_indptr, q_scale, k_scale, v_scale, flag_of(bare_state, "bare_state"), params, stream});
          },
          arg("plan").none(), arg("q").none(), arg("k").none(), arg("v").none(), nb::kw_only(), arg("out").none() = none,
          arg("lse").none() = none, arg("return_lse").none() = false, arg("pages").none() = none, arg("page_pos").none() = none,
          arg("layout").none() = "NHD", arg("alibi_slopes").none() = none, arg("sink").none() = none, arg("mask").none() = none,
          arg("mask_indptr").none() = none, arg("q_scale").none() = none, arg("k_scale").none() = none, arg("v_scale").none() = none,
          arg("bare_state").none() = false, arg("params").none() = none, arg("stream").none() = none, arg("unknown"), docs::kRun)
      .def("plan", refuse_others("plan"), docs::kPlanStep)
      .def("replan", refuse_others("replan"), docs::kReplan)
      .def("plan_on_device", refuse_others("plan_on_device"), docs::kPlanOnDevice)
      .def("replan_on_device", refuse_others("replan_on_device"), docs::kReplanOnDevice)
      .def("check", refuse_others("check"), docs::kCheck)
      .def("plan_sparse", refuse_others("plan_sparse"), docs::kPlanSparse)
      .def("run", refuse_others("run"), docs::kRun)
      .def("explain", &Engine::explain, "What was considered for this engine and why: kernels, tiles, FLOP a byte, the roof that binds.")
      .def_prop_ro("kernel_key", &Engine::kernel_key, "The key of the kernel that runs it: \"attend.cpu-avx2.bf16.d128.paged.causal\".")
      .def_prop_ro("backend", &Engine::backend, "\"cpu\" or \"cuda\".")
      .def_prop_ro("device", &Engine::device, "Ordinal of its GPU; -1 where it has none.");
}

}  // namespace kvloom::python
