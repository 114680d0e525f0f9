#include "cli/check/compare.h"

#include "cli/check/row_faults.h"
#include "kvloom/support/check.h"

#include <algorithm>
#include <cmath>

namespace kvloom::check {
namespace {

constexpr double kExcess = 2e-6;
constexpr double kLse = 2e-6;

struct PlainBounds {
  double whole, row;
};
PlainBounds plain_bounds(DType output) {
  if (output == DType::bf16) return {1.9e-3, 2.5e-3};
  if (output == DType::f16) return {2.4e-4, 3.2e-4};
  return {2e-6, 2e-6};
}

/// Half a unit in the last place of `t` at magnitude |x|.
double half_ulp(DType t, double x) {
  const int bits = t == DType::bf16 ? 8 : t == DType::f16 ? 11 : 24;  // of the significand
  const int least = t == DType::f16 ? -14 : -126;                     // exponent of the smallest normal number
  int exponent = least;
  if (x != 0.0) exponent = std::max(least, std::ilogb(x));
  return std::ldexp(0.5, exponent - bits + 1);
}

/// `x` in type `t`, as a perfect answer has it.
double rounded(DType t, double x) {
  float element = 0.0f;
  store_from_float(&element, t, 0, float(x));
  return load_as_float(&element, t, 0);
}

struct RowErrors {
  double square = 0.0, excess = 0.0, norm = 0.0;
  double perfect = 0.0;  // `square` of a perfect answer
};
RowErrors row_errors(DType type, const float* o, const double* ref, int32_t dim) {
  RowErrors e;
  for (int32_t d = 0; d < dim; ++d) {
    const double off = std::fabs(double(o[d]) - ref[d]);
    const double beyond = std::max(0.0, off - half_ulp(type, std::max(std::fabs(double(o[d])), std::fabs(ref[d]))));
    e.square += off * off;
    e.excess += beyond * beyond;
    e.norm += ref[d] * ref[d];
    const double forced = rounded(type, ref[d]) - ref[d];
    e.perfect += forced * forced;
  }
  return e;
}

class Comparison {
 public:
  Comparison(const Case& c, const std::vector<double>& growth, Errors& errors)
      : case_(c), growth_(growth), errors_(errors), faults_(c, errors) {}

  void row(int64_t i, const float* o, const double* ref_o) {
    if (!faults_.finite(i, o, ref_o)) return;
    const int32_t dim = case_.spec.head_dim_vo;
    const PlainBounds bounds = plain_bounds(case_.spec.o_dtype);
    const RowErrors e = row_errors(case_.spec.o_dtype, o, ref_o, dim);
    square_ += e.square;
    perfect_ += e.perfect;
    norm_ += e.norm;
    if (e.norm == 0.0) {
      if (e.square != 0.0) faults_.note(i, "keeps no key: got a row that is not zero; its norm", std::sqrt(e.square), 0.0);
      return;
    }
    const double plain = std::sqrt(e.square / e.norm), excess = std::sqrt(e.excess / e.norm);
    errors_.worst_row = std::max(errors_.worst_row, plain);
    errors_.worst_excess = std::max(errors_.worst_excess, excess);
    const double growth = growth_of(i);
    if (excess > kExcess * growth) faults_.note(i, "error beyond the output's rounding", excess, kExcess * growth);
    const double bound = std::max(bounds.row, std::sqrt(e.perfect / e.norm) + kExcess * growth);
    if (dim >= 128 && case_.spec.o_dtype != DType::f32 && plain > bound) faults_.note(i, "relative error", plain, bound);
  }

  void lse(int64_t i, float got, double wanted) { faults_.lse(i, got, wanted, kLse * growth_of(i)); }

  void finish(int64_t elements) {
    errors_.whole = norm_ > 0.0 ? std::sqrt(square_ / norm_) : 0.0;
    const bool is_f32 = case_.spec.o_dtype == DType::f32;
    double bound = plain_bounds(case_.spec.o_dtype).whole * (is_f32 ? worst_growth_ : 1.0);
    if (norm_ > 0.0) bound = std::max(bound, std::sqrt(perfect_ / norm_) + kExcess * worst_growth_);
    const bool enough = elements >= 4096 || is_f32;
    if (enough && errors_.whole > bound && errors_.fault.empty())
      errors_.fault = fmt::format("whole tensor: relative error: got {:.3g}, wanted {:.3g} or less", errors_.whole, bound);
  }

 private:
  double growth_of(int64_t i) {
    if (growth_.empty()) return 1.0;
    worst_growth_ = std::max(worst_growth_, growth_[size_t(i)]);
    return growth_[size_t(i)];
  }

  const Case& case_;
  const std::vector<double>& growth_;
  Errors& errors_;
  RowFaults faults_;
  double worst_growth_ = 1.0;
  double square_ = 0.0, perfect_ = 0.0, norm_ = 0.0;
};

}  // namespace

Errors compare(const Case& c, const std::vector<float>& o, const std::vector<float>& lse, const std::vector<double>& ref_o,
               const std::vector<double>& ref_lse, const std::vector<double>& growth) {
  Errors errors;
  Comparison comparison(c, growth, errors);
  const int64_t rows = c.total_tokens() * c.spec.num_qo_heads;
  for (int64_t i = 0; i < rows; ++i) {
    comparison.row(i, o.data() + i * c.spec.head_dim_vo, ref_o.data() + i * c.spec.head_dim_vo);
    if (!lse.empty()) comparison.lse(i, lse[size_t(i)], ref_lse[size_t(i)]);
  }
  comparison.finish(rows * c.spec.head_dim_vo);
  return errors;
}

}  // namespace kvloom::check
