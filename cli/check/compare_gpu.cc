// The bounds of runs on tensor cores: compare.h says what they are and why.
#include "cli/check/compare.h"
#include "cli/check/row_faults.h"
#include "kvloom/support/check.h"

#include <algorithm>
#include <cmath>

namespace kvloom::check {
namespace {

constexpr double kDeviations = 5.0;  // of what rounding turned Q and K does

struct Bounds {
  double whole, row, floor, lse;
};

bool rounds_to_f16(const AttentionSpec& s) { return s.q_dtype == DType::f16 || is_fp8(s.kv_dtype); }

/// Relative rounding of the output type, root mean square: what a perfect answer is off by.
double output_rounding(DType t) { return t == DType::bf16 ? 1.7e-3 : t == DType::f16 ? 2.1e-4 : 0.0; }

Bounds bounds_of(const Case& c) {
  const AttentionSpec& s = c.spec;
  const bool f16 = rounds_to_f16(s);
  const double v_scale = std::fabs(double(c.v_scale)) * (c.scale_per_head ? 2.0 : 1.0);
  const double eps = f16 && s.o_dtype != DType::bf16 ? 0.125 : 1.0;
  Bounds b;
  b.whole = f16 ? 3.3e-4 + output_rounding(s.o_dtype) : 2.6e-3;
  b.row = 4e-3 * eps;
  b.floor = 6e-4 * eps * std::sqrt(double(s.head_dim_vo)) * v_scale;
  b.lse = 4e-6;
  return b;
}

}  // namespace

Errors compare_gpu(const Case& c, const std::vector<float>& o, const std::vector<float>& lse, const std::vector<double>& ref_o,
                   const std::vector<double>& ref_lse, const std::vector<double>& growth, const std::vector<ref::Rounding>& rounding) {
  Errors errors;
  const int64_t dim = c.spec.head_dim_vo, rows = c.total_tokens() * c.spec.num_qo_heads;
  const Bounds b = bounds_of(c);
  double square = 0.0, norm = 0.0, worst_growth = 1.0, turned_square = 0.0, most_turned = 0.0;
  RowFaults faults(c, errors);
  for (int64_t i = 0; i < rows; ++i) {
    double row_square = 0.0, row_norm = 0.0;
    for (int64_t d = 0; d < dim; ++d) {
      const double want = ref_o[size_t(i * dim + d)], off = double(o[size_t(i * dim + d)]) - want;
      row_square += off * off;
      row_norm += want * want;
    }
    const double g = growth.empty() ? 1.0 : growth[size_t(i)];
    const ref::Rounding turned = rounding.empty() ? ref::Rounding() : rounding[size_t(i)];
    worst_growth = std::max(worst_growth, g);
    if (!faults.finite(i, o.data() + i * dim, ref_o.data() + i * dim)) continue;
    square += row_square;
    norm += row_norm;
    turned_square += turned.o * turned.o;
    most_turned = std::max(most_turned, turned.o);
    if (row_norm == 0.0) {
      if (row_square != 0.0)
        faults.note(i, "keeps no key, or only zeros: got a row that is not zero; its norm", std::sqrt(row_square), 0.0);
    } else {
      errors.worst_row = std::max(errors.worst_row, std::sqrt(row_square / row_norm));
      const double bound = g * (b.row * std::sqrt(row_norm) + b.floor) + kDeviations * turned.o;
      if (std::sqrt(row_square) > bound) faults.note(i, "error of the row", std::sqrt(row_square), bound);
    }
    if (!lse.empty()) faults.lse(i, lse[size_t(i)], ref_lse[size_t(i)], b.lse * g + kDeviations * turned.lse / (1.0 + std::fabs(ref_lse[size_t(i)])));
  }
  errors.whole = norm > 0.0 ? std::sqrt(square / norm) : 0.0;
  const double turned = norm > 0.0 ? (std::sqrt(turned_square) + kDeviations * most_turned) / std::sqrt(norm) : 0.0;
  const double whole = b.whole * worst_growth + turned;
  if (rows * dim >= 4096 && errors.whole > whole && errors.fault.empty()) {
    errors.fault = fmt::format("whole tensor: relative error: got {:.3g}, wanted {:.3g} or less", errors.whole, whole);
  }
  return errors;
}

}  // namespace kvloom::check
