#include "kvloom/api/param_binding.h"

#include "kvloom/support/check.h"

#include <cmath>
#include <cstring>

namespace kvloom::api {
namespace {

constexpr double kMostExact = 9007199254740992.0;  // 2^53

const char* dim_name(int32_t dim) {
  switch (dim) {
    case dim::any:
      return "any";
    case dim::qo_heads:
      return "num_qo_heads";
    case dim::kv_heads:
      return "num_kv_heads";
    case dim::requests:
      return "num_requests";
  }
  return "";
}

int64_t wanted_length(int32_t dim, const NamedDims& dims) {
  if (dim == dim::qo_heads) return dims.qo_heads;
  if (dim == dim::kv_heads) return dims.kv_heads;
  if (dim == dim::requests) return dims.requests;
  return dim;
}

std::string known_names(const UserVariant& user) {
  std::string names;
  for (int32_t i = 0; i < user.num_params; ++i) names += (i == 0 ? "" : ", ") + std::string(user.params[i].name);
  return names.empty() ? "none" : names;
}

void bind_number(const ParamDecl& d, const VariantParam& p, unsigned char* at) {
  require(p.ndim == 0, "run: params: {}: got an array, wanted a number ({})", d.name, name_of(d.type));
  if (d.type == ParamType::f32) {
    const float value = float(p.number);
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const double most = d.type == ParamType::i32 ? 2147483647.0 : kMostExact;
  require(std::trunc(p.number) == p.number && std::fabs(p.number) <= most, "run: params: {}: got {}, wanted a whole number of {}", d.name,
          p.number, name_of(d.type));
  const auto wide = int64_t(p.number);
  const auto narrow = int32_t(wide);
  std::memcpy(at, d.type == ParamType::i32 ? static_cast<const void*>(&narrow) : &wide, size_t(size_of(d.type)));
}

/// The layout of Array<T, ...> in variants/user.h.
void bind_array(const ParamDecl& d, const VariantParam& p, const NamedDims& dims, unsigned char* at) {
  require(p.ndim != 0, "run: params: {}: got a number, wanted an array ({})", d.name, declaration_text(d));
  require(p.type == d.type, "run: params: {}: got {}, wanted {}", d.name, name_of(p.type), name_of(d.type));
  require(p.ndim == d.ndim, "run: params: {}: got {} dimensions, wanted {} ({})", d.name, p.ndim, d.ndim, declaration_text(d));
  int64_t elements = 1;
  for (int32_t i = 0; i < d.ndim; ++i) {
    const int64_t wanted = wanted_length(d.dims[i], dims);
    require(d.dims[i] == dim::any ? p.shape[i] >= 0 && p.shape[i] <= INT32_MAX : p.shape[i] == wanted,
            "run: params: {}: shape[{}]: got {}, wanted {} ({})", d.name, i, p.shape[i],
            d.dims[i] == dim::any ? "0 .. 2147483647" : std::to_string(wanted), declaration_text(d));
    require(std::llabs(p.stride[i]) <= int64_t(1) << 40, "run: params: {}: stride[{}]: got {}, wanted at most 2^40 elements", d.name, i,
            p.stride[i]);
    elements *= p.shape[i] > 0;
  }
  require(p.data != nullptr || elements == 0, "run: params: {}: got a null pointer, wanted an array ({})", d.name, declaration_text(d));
  require(reinterpret_cast<uintptr_t>(p.data) % uintptr_t(size_of(d.type)) == 0,
          "run: params: {}: address: got {}, wanted a multiple of {} bytes", d.name, p.data, size_of(d.type));
  std::memcpy(at, &p.data, 8);
  std::memcpy(at + 8, p.stride, size_t(d.ndim) * 8);
  for (int32_t i = 0; i < d.ndim; ++i) {
    const auto size = int32_t(p.shape[i]);
    std::memcpy(at + 8 + 8 * d.ndim + 4 * i, &size, 4);
  }
}

}  // namespace

const char* name_of(ParamType type) {
  constexpr const char* names[] = {"f32", "i32", "i64", "u8"};
  return int(type) >= 0 && int(type) < 4 ? names[int(type)] : "an unknown type";
}

std::string declaration_text(const ParamDecl& d) {
  std::string text = kvloom::format("{} {}", d.name, name_of(d.type));
  for (int32_t i = 0; i < d.ndim; ++i) {
    text += (i == 0 ? " [" : ", ") + (d.dims[i] < 0 ? std::string(dim_name(d.dims[i])) : std::to_string(d.dims[i]));
  }
  return d.ndim > 0 ? text + "]" : text;
}

UserParams bind_params(const UserVariant* user, Span<const VariantParam> given, const NamedDims& dims) {
  UserParams bound;
  require(user != nullptr || given.empty(), "run: params: got {} of them, wanted none; the spec has no variant of the user's", given.size);
  if (user == nullptr) return bound;
  uint64_t seen = 0;
  for (const VariantParam& p : given) {
    int32_t i = 0;
    while (i < user->num_params && std::strcmp(user->params[i].name, p.name) != 0) ++i;
    require(i < user->num_params, "run: params: {}: got a parameter that {} does not have, wanted one of {}", p.name, user->name,
            known_names(*user));
    require((seen >> i & 1) == 0, "run: params: {}: got it twice, wanted it once", p.name);
    seen |= uint64_t(1) << i;
    const ParamDecl& d = user->params[i];
    unsigned char* const at = bound.bytes + d.offset;
    d.ndim == 0 ? bind_number(d, p, at) : bind_array(d, p, dims, at);
  }
  for (int32_t i = 0; i < user->num_params; ++i) {
    require(seen >> i & 1, "run: params: {}: got none, wanted {}; {} needs it", user->params[i].name, declaration_text(user->params[i]),
            user->name);
  }
  return bound;
}

}  // namespace kvloom::api
