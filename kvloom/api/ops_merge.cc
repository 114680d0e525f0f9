#include "kvloom/api/op_place.h"
#include "kvloom/api/tensor_check.h"
#include "kvloom/cpu/merge_states.h"
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

void check_float(const Tensor& t, const char* where, const char* name) {
  require(t.dtype == DType::f32 || t.dtype == DType::f16 || t.dtype == DType::bf16, "{}: {}: dtype: got {}, wanted f32, f16 or bf16", where,
          name, name_of(t.dtype));
}

/// Shape of the merged states, from the output.
struct Shape {
  int64_t rows, heads, dim;
};

Shape check_output(const Tensor& o, const Tensor& lse, const char* where) {
  check_float(o, where, "o");
  check_tensor(o, {where, "o", "[rows, heads, dim]", o.dtype, 3, {kAny, kAny, kAny}});
  check_writable(o, where, "o");
  const Shape s{o.shape[0], o.shape[1], o.shape[2]};
  if (lse.given()) {
    check_tensor(lse, {where, "lse", "[rows, heads]", DType::f32, 2, {s.rows, s.heads}, "; as o has it", true});
    check_writable(lse, where, "lse");
    check_disjoint(lse, "lse", o, "o", where);
  }
  return s;
}

void check_side(const Tensor& o, const Tensor& lse, const Shape& s, const char* where, const char* o_name, const char* lse_name) {
  check_float(o, where, o_name);
  check_tensor(o, {where, o_name, "[rows, heads, dim]", o.dtype, 3, {s.rows, s.heads, s.dim}, "; as o has it"});
  check_tensor(lse, {where, lse_name, "[rows, heads]", DType::f32, 2, {s.rows, s.heads}, "; as o has it", true});
}

bool same_view(const Tensor& a, const Tensor& b) {
  bool same = a.data == b.data && a.dtype == b.dtype && a.ndim == b.ndim;
  for (int32_t d = 0; same && d < a.ndim; ++d) same = stride_of(a, d) == stride_of(b, d);
  return same;
}

void check_apart(const Tensor& out, const char* name, const Tensor& in, const char* in_name, const char* where, bool in_place) {
  if (!in_place || !same_view(out, in)) check_disjoint(out, name, in, in_name, where);
}

/// States of [rows, heads], or with `states` of [rows, states, heads].
StateView state_view(const Tensor& o, const Tensor& lse, bool states = false) {
  const int32_t head = states ? 2 : 1;
  StateView view;
  view.o = o.data, view.dtype = o.dtype, view.o_row = stride_of(o, 0), view.o_head = stride_of(o, head);
  view.lse = static_cast<const float*>(lse.data), view.lse_row = stride_of(lse, 0), view.lse_head = stride_of(lse, head);
  if (states) view.o_state = stride_of(o, 1), view.lse_state = stride_of(lse, 1);
  return view;
}

/// The output's half of the arguments.
MergeArgs args_into(const Tensor& o, const Tensor& lse, const Shape& s) {
  MergeArgs args;
  args.o = o.data, args.dtype = o.dtype, args.o_row = stride_of(o, 0), args.o_head = stride_of(o, 1);
  if (lse.given()) args.lse = static_cast<float*>(lse.data), args.lse_row = stride_of(lse, 0), args.lse_head = stride_of(lse, 1);
  args.num_rows = s.rows, args.heads = s.heads, args.dim = s.dim;
  return args;
}

void merge(const MergeArgs& args, const OpPlace& place, const char* where) {
  if (place.on_gpu()) return runtime::launch_merge_states(place.device(), args, place.stream(), where);
  const int64_t states = args.indptr.given() ? args.indptr[args.num_rows] - args.indptr[0] : args.num_rows * args.lists * args.fixed;
  cpu::merge_states(args, cpu::element_rows(cpu::best_target()), runtime::threads_for(states * args.heads * args.dim).get());
}

void check_places(const OpPlace& place, std::initializer_list<std::pair<const Tensor*, const char*>> tensors) {
  for (const auto& [tensor, name] : tensors) place.check(*tensor, name);
}

void check_indptr_size(IndexView indptr, int64_t rows, const char* where) {
  require(indptr.given() && indptr.size == rows + 1, "{}: indptr: got {} entries, wanted {} (one more than o has rows)", where, indptr.size,
          rows + 1);
}

std::vector<int64_t> checked_indptr(IndexView indptr, int64_t rows, int64_t total, const char* where) {
  std::vector<int64_t> p(size_t(rows + 1));
  for (int64_t r = 0; r <= rows; ++r) {
    p[size_t(r)] = indptr[r];
    const int64_t before = r > 0 ? p[size_t(r - 1)] : 0;
    require(indptr[r] >= before && indptr[r] <= total, "{}: indptr[{}]: got {}, wanted {} .. {} (never falling, within o_in)", where, r,
            indptr[r], before, total);
  }
  return p;
}

}  // namespace

void merge_states(const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b, const Tensor& lse_b, const Tensor& o, const Tensor& lse,
                  const OpOptions& options) {
  constexpr const char* where = "merge_states";
  const OpPlace place(options, where);
  const Shape s = check_output(o, lse, where);
  check_side(o_a, lse_a, s, where, "o_a", "lse_a");
  check_side(o_b, lse_b, s, where, "o_b", "lse_b");
  for (const auto& [in, name] : {std::pair{&o_a, "o_a"}, std::pair{&o_b, "o_b"}}) {
    check_apart(o, "o", *in, name, where, true);
    check_apart(lse, "lse", *in, name, where, false);
  }
  for (const auto& [in, name] : {std::pair{&lse_a, "lse_a"}, std::pair{&lse_b, "lse_b"}}) {
    check_apart(lse, "lse", *in, name, where, true);
    check_apart(o, "o", *in, name, where, false);
  }
  check_places(place, {{&o_a, "o_a"}, {&lse_a, "lse_a"}, {&o_b, "o_b"}, {&lse_b, "lse_b"}, {&o, "o"}, {&lse, "lse"}});
  MergeArgs args = args_into(o, lse, s);
  args.lists = 2;
  args.in[0] = state_view(o_a, lse_a);
  args.in[1] = state_view(o_b, lse_b);
  merge(args, place, where);
}

void merge_states_n(const Tensor& o_in, const Tensor& lse_in, const Tensor& o, const Tensor& lse, const OpOptions& options) {
  constexpr const char* where = "merge_states_n";
  const OpPlace place(options, where);
  const Shape s = check_output(o, lse, where);
  check_float(o_in, where, "o_in");
  check_tensor(o_in, {where, "o_in", "[rows, states, heads, dim]", o_in.dtype, 4, {s.rows, kAny, s.heads, s.dim}, "; as o has it"});
  check_tensor(lse_in,
               {where, "lse_in", "[rows, states, heads]", DType::f32, 3, {s.rows, o_in.shape[1], s.heads}, "; as o_in has it", true});
  for (const auto& [out, name] : {std::pair{&o, "o"}, std::pair{&lse, "lse"}}) {
    check_disjoint(*out, name, o_in, "o_in", where);
    check_disjoint(*out, name, lse_in, "lse_in", where);
  }
  check_places(place, {{&o_in, "o_in"}, {&lse_in, "lse_in"}, {&o, "o"}, {&lse, "lse"}});
  MergeArgs args = args_into(o, lse, s);
  args.in[0] = state_view(o_in, lse_in, true);
  args.fixed = o_in.shape[1];
  merge(args, place, where);
}

void merge_states_ragged(const Tensor& o_in, const Tensor& lse_in, IndexView indptr, const Tensor& o, const Tensor& lse,
                         const OpOptions& options) {
  constexpr const char* where = "merge_states_ragged";
  const OpPlace place(options, where);
  const Shape s = check_output(o, lse, where);
  check_float(o_in, where, "o_in");
  check_tensor(o_in, {where, "o_in", "[total, heads, dim]", o_in.dtype, 3, {kAny, s.heads, s.dim}, "; as o has it"});
  check_tensor(lse_in, {where, "lse_in", "[total, heads]", DType::f32, 2, {o_in.shape[0], s.heads}, "; as o_in has it", true});
  for (const auto& [out, name] : {std::pair{&o, "o"}, std::pair{&lse, "lse"}}) {
    check_disjoint(*out, name, o_in, "o_in", where);
    check_disjoint(*out, name, lse_in, "lse_in", where);
  }
  check_places(place, {{&o_in, "o_in"}, {&lse_in, "lse_in"}, {&o, "o"}, {&lse, "lse"}});
  check_indptr_size(indptr, s.rows, where);
  MergeArgs args = args_into(o, lse, s);
  args.in[0] = state_view(o_in, lse_in);
  args.indptr = indptr;
  if (place.on_gpu()) {  // what it holds is read there
    place.check_array(indptr.data, "indptr");
    return merge(args, place, where);
  }
  const std::vector<int64_t> p = checked_indptr(indptr, s.rows, o_in.shape[0], where);
  args.indptr = IndexView(p.data(), s.rows + 1);
  merge(args, place, where);
}

}  // namespace kvloom
