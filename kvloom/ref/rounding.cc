#include "kvloom/ref/rounding.h"

#include <algorithm>
#include <cmath>

namespace kvloom::ref {
namespace {

int32_t rotary_dims(const AttentionSpec& s) {
  const RopeSpec& rope = s.variant.rope;
  return rope.mode == RopeMode::none ? 0 : (rope.rotary_dim > 0 ? rope.rotary_dim : s.head_dim_qk) / 2 * 2;
}

}  // namespace

TurnedRounding::TurnedRounding(const AttentionSpec& spec)
    : type_(spec.q_dtype),
      rotary_(rotary_dims(spec)),
      dim_vo_(spec.head_dim_vo),
      q_(size_t(rotary_)),
      q_variance_(size_t(rotary_)),
      o_by_q_(size_t(rotary_) * size_t(dim_vo_)),
      lse_by_q_(size_t(rotary_)) {}

double TurnedRounding::variance(double x) const {
  if (x == 0.0) return 0.0;
  const int bits = type_ == DType::bf16 ? 8 : type_ == DType::f16 ? 11 : 24;  // of the significand
  const int exponent = std::max(type_ == DType::f16 ? -14 : -126, std::ilogb(x));
  return std::ldexp(1.0 / 12.0, 2 * (exponent - bits + 1));
}

void TurnedRounding::start(const double* q) {
  for (int32_t d = 0; d < rotary_; ++d) {
    q_[d] = q[d];
    q_variance_[d] = variance(q[d]);
  }
  std::fill(o_by_q_.begin(), o_by_q_.end(), 0.0);
  std::fill(lse_by_q_.begin(), lse_by_q_.end(), 0.0);
  o_of_k_ = lse_of_k_ = o_apart_ = lse_apart_ = 0.0;
}

void TurnedRounding::add(const double* k, const double* o_by_s, double lse_by_s) {
  double of_k = 0.0, of_q = 0.0, square = 0.0;  // variances of the score; ||dO/ds||^2
  for (int32_t e = 0; e < dim_vo_; ++e) square += o_by_s[e] * o_by_s[e];
  for (int32_t d = 0; d < rotary_; ++d) {
    of_k += q_[d] * q_[d] * variance(k[d]);
    of_q += q_variance_[d] * k[d] * k[d];
    lse_by_q_[d] += lse_by_s * k[d];
    double* const row = o_by_q_.data() + int64_t(d) * dim_vo_;
    for (int32_t e = 0; e < dim_vo_; ++e) row[e] += k[d] * o_by_s[e];
  }
  o_of_k_ += square * of_k;
  o_apart_ += square * of_q;
  lse_of_k_ += lse_by_s * lse_by_s * of_k;
  lse_apart_ += lse_by_s * lse_by_s * of_q;
}

Rounding TurnedRounding::result() const {
  double o = 0.0, lse = 0.0;
  for (int32_t d = 0; d < rotary_; ++d) {
    const double* const row = o_by_q_.data() + int64_t(d) * dim_vo_;
    double square = 0.0;
    for (int32_t e = 0; e < dim_vo_; ++e) square += row[e] * row[e];
    o += q_variance_[d] * square;
    lse += q_variance_[d] * lse_by_q_[d] * lse_by_q_[d];
  }
  return {std::sqrt(o_of_k_ + std::max(o, o_apart_)), std::sqrt(lse_of_k_ + std::max(lse, lse_apart_))};
}

}  // namespace kvloom::ref
