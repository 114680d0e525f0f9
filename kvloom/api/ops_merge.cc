#include "kvloom/api/ops.h"
#include "kvloom/api/tensor_check.h"
#include "kvloom/cpu/merge_states.h"
#include "kvloom/runtime/launch_cpu.h"
#include "kvloom/support/check.h"

namespace kvloom {
namespace {

using api::check_disjoint;
using api::check_tensor;
using api::check_writable;
using api::kAny;
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

cpu::StateRows state_rows(const Tensor& o, const Tensor& lse) {
  return {o.data, o.dtype, stride_of(o, 0), stride_of(o, 1), static_cast<const float*>(lse.data), stride_of(lse, 0), stride_of(lse, 1)};
}
cpu::MergedRows merged_rows(const Tensor& o, const Tensor& lse) {
  cpu::MergedRows m{o.data, o.dtype, stride_of(o, 0), stride_of(o, 1)};
  if (lse.given()) m.lse = static_cast<float*>(lse.data), m.lse_row = stride_of(lse, 0), m.lse_head = stride_of(lse, 1);
  return m;
}

std::vector<int64_t> checked_indptr(IndexView indptr, int64_t rows, int64_t total, const char* where) {
  require(indptr.given() && indptr.size == rows + 1, "{}: indptr: got {} entries, wanted {} (one more than o has rows)", where, indptr.size,
          rows + 1);
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

void merge_states(const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b, const Tensor& lse_b, const Tensor& o, const Tensor& lse) {
  constexpr const char* where = "merge_states";
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
  cpu::merge_states(state_rows(o_a, lse_a), state_rows(o_b, lse_b), merged_rows(o, lse), s.rows, s.heads, s.dim,
                    cpu::element_rows(cpu::best_target()), runtime::threads_for(s.rows * s.heads * s.dim).get());
}

void merge_states_n(const Tensor& o_in, const Tensor& lse_in, const Tensor& o, const Tensor& lse) {
  constexpr const char* where = "merge_states_n";
  const Shape s = check_output(o, lse, where);
  check_float(o_in, where, "o_in");
  check_tensor(o_in, {where, "o_in", "[rows, states, heads, dim]", o_in.dtype, 4, {s.rows, kAny, s.heads, s.dim}, "; as o has it"});
  check_tensor(lse_in,
               {where, "lse_in", "[rows, states, heads]", DType::f32, 3, {s.rows, o_in.shape[1], s.heads}, "; as o_in has it", true});
  for (const auto& [out, name] : {std::pair{&o, "o"}, std::pair{&lse, "lse"}}) {
    check_disjoint(*out, name, o_in, "o_in", where);
    check_disjoint(*out, name, lse_in, "lse_in", where);
  }
  cpu::StateRanges g;
  g.in = {
      o_in.data,           o_in.dtype, stride_of(o_in, 0), stride_of(o_in, 2), static_cast<const float*>(lse_in.data), stride_of(lse_in, 0),
      stride_of(lse_in, 2)};
  g.fixed = o_in.shape[1];
  g.o_state = stride_of(o_in, 1);
  g.lse_state = stride_of(lse_in, 1);
  cpu::merge_ranges(g, merged_rows(o, lse), s.rows, s.heads, s.dim, cpu::element_rows(cpu::best_target()),
                    runtime::threads_for(s.rows * g.fixed * s.heads * s.dim).get());
}

void merge_states_ragged(const Tensor& o_in, const Tensor& lse_in, IndexView indptr, const Tensor& o, const Tensor& lse) {
  constexpr const char* where = "merge_states_ragged";
  const Shape s = check_output(o, lse, where);
  check_float(o_in, where, "o_in");
  check_tensor(o_in, {where, "o_in", "[total, heads, dim]", o_in.dtype, 3, {kAny, s.heads, s.dim}, "; as o has it"});
  check_tensor(lse_in, {where, "lse_in", "[total, heads]", DType::f32, 2, {o_in.shape[0], s.heads}, "; as o_in has it", true});
  for (const auto& [out, name] : {std::pair{&o, "o"}, std::pair{&lse, "lse"}}) {
    check_disjoint(*out, name, o_in, "o_in", where);
    check_disjoint(*out, name, lse_in, "lse_in", where);
  }
  const std::vector<int64_t> p = checked_indptr(indptr, s.rows, o_in.shape[0], where);
  cpu::StateRanges g;
  g.in = state_rows(o_in, lse_in);
  g.indptr = p.data();
  cpu::merge_ranges(g, merged_rows(o, lse), s.rows, s.heads, s.dim, cpu::element_rows(cpu::best_target()),
                    runtime::threads_for((p.back() - p.front()) * s.heads * s.dim).get());
}

}  // namespace kvloom
