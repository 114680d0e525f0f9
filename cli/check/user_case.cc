#include "cli/check/user_case.h"

#include "cli/check/random.h"
#include "kvloom/api/param_binding.h"

#include <algorithm>
#include <cmath>

namespace kvloom::check {
namespace {

int64_t length_of(int32_t dim, const Case& c, int64_t positions) {
  if (dim == dim::qo_heads) return c.spec.num_qo_heads;
  if (dim == dim::kv_heads) return c.spec.num_kv_heads;
  if (dim == dim::requests) return c.num_requests();
  return dim == dim::any ? positions : dim;
}

/// Value number `i` of a parameter: within its range, whole for integers.
double value_of(const Case& c, const ParamDecl& d, uint64_t stream, uint64_t i) {
  const uint64_t bits = stream_bits(c.seed, Stream::user, stream * (uint64_t(1) << 40) + i);
  if (d.type == ParamType::f32) return d.low + (d.high - d.low) * double(bits >> 40) / double((1 << 24) - 1);
  const double low = std::ceil(d.low), count = std::floor(d.high) - low + 1.0;  // 1 to 2^54 + 1: a variant has no other ranges
  return std::min(low + double(bits % uint64_t(count)), std::floor(d.high));
}

void store(void* data, ParamType type, int64_t i, double x) {
  switch (type) {
    case ParamType::f32:
      static_cast<float*>(data)[i] = float(x);
      return;
    case ParamType::i32:
      static_cast<int32_t*>(data)[i] = int32_t(x);
      return;
    case ParamType::i64:
      static_cast<int64_t*>(data)[i] = int64_t(x);
      return;
    case ParamType::u8:
      static_cast<uint8_t*>(data)[i] = uint8_t(x);
      return;
  }
}

}  // namespace

void bend_for_user(Case& c, const UserVariant* user) {
  if (user == nullptr) return;
  c.spec.variant.user = user;
  c.spec = with_user_variant(c.spec);
  VariantSpec& v = c.spec.variant;
  if (user->finish != nullptr) v.sink = false;
  if (user->reduction == Reduction::sum) v.sigmoid_bias = 0.0f;
  if (v.reduction == Reduction::softmax) return;
  v.sink = false;
  c.want_lse = false;
}

int64_t elements_of(const VariantParam& p) {
  int64_t n = 1;
  for (int32_t i = 0; i < p.ndim; ++i) n *= p.shape[i];
  return n;
}

void CaseParams::make(const Case& c, int64_t positions) {
  const UserVariant* const user = c.spec.variant.user;
  if (user == nullptr) return;
  for (int32_t i = 0; i < user->num_params; ++i) {
    const ParamDecl& d = user->params[i];
    if (d.ndim == 0) {
      list_.emplace_back(d.name, value_of(c, d, uint64_t(i), 0));
      continue;
    }
    VariantParam p(d.name, d.type, nullptr, {});
    p.ndim = d.ndim;
    int64_t step = 1;
    for (int32_t k = d.ndim - 1; k >= 0; --k) {
      p.shape[k] = length_of(d.dims[k], c, positions);
      p.stride[k] = step;
      step *= p.shape[k];
    }
    arrays_.emplace_back(step * size_of(p.type));
    p.data = arrays_.back().data();
    for (int64_t e = 0; e < step; ++e) store(arrays_.back().data(), d.type, e, value_of(c, d, uint64_t(i), uint64_t(e)));
    list_.push_back(p);
  }
}

UserParams CaseParams::bound(const Case& c) const {
  return api::bind_params(c.spec.variant.user, params(), {c.spec.num_qo_heads, c.spec.num_kv_heads, c.num_requests()});
}

}  // namespace kvloom::check
