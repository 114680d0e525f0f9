// What the text of a user's variant is written with: arrays, declarations of parameters, and the macro that names the struct. The same text
// is compiled by the host's compiler and by NVRTC. docs/variants.md has the hooks, their types and examples.
//
//   struct AlibiSlopes {
//     struct Params {
//       kvloom::Array<float, kvloom::dim::qo_heads> slopes;
//       KVLOOM_PARAMS(KVLOOM_PARAM(slopes, 0.01, 0.5))
//     };
//     static float logit(float score, const kvloom::Coord& c, const Params& p) {
//       return score + p.slopes(c.q_head) * float(c.kv_pos - c.q_pos);
//     }
//   };
//   KVLOOM_VARIANT(AlibiSlopes)
#pragma once

#include "kvloom/attn/exp.h"
#include "kvloom/attn/state.h"
#include "kvloom/contract/user_variant.h"
#include "kvloom/variants/compose.h"

namespace kvloom {

/// An array of the caller's, read in place: p.table(c.request, c.kv_pos). T is float, int32_t, int64_t or uint8_t; kDims says how long each
/// dimension is (dim:: or a number), and is checked before a run. Indices are not checked.
template <class T, int32_t... kDims>
struct Array {
  static constexpr int32_t kRank = int32_t(sizeof...(kDims));
  static_assert(kRank >= 1 && kRank <= kMaxParamDims, "an Array has 1 to 3 dimensions: Array<float, dim::qo_heads>");

  const T* data;
  int64_t stride[kRank];  // elements
  int32_t size[kRank];

  template <class... Index>
  KVLOOM_HD T operator()(Index... index) const {
    static_assert(sizeof...(Index) == sizeof...(kDims), "an Array is read with one index a dimension");
    const int64_t at[kRank] = {int64_t(index)...};
    int64_t offset = 0;
    for (int32_t d = 0; d < kRank; ++d) offset += at[d] * stride[d];
    return data[offset];
  }
};

namespace variants {

template <class A, class B>
inline constexpr bool kSameType = false;
template <class A>
inline constexpr bool kSameType<A, A> = true;
template <class A, class B>
concept SameAs = kSameType<A, B>;

template <class T>
struct ParamTypeOf;  // of no other type
template <>
struct ParamTypeOf<float> {
  static constexpr ParamType value = ParamType::f32;
};
template <>
struct ParamTypeOf<int32_t> {
  static constexpr ParamType value = ParamType::i32;
};
template <>
struct ParamTypeOf<int64_t> {
  static constexpr ParamType value = ParamType::i64;
};
template <>
struct ParamTypeOf<uint8_t> {
  static constexpr ParamType value = ParamType::u8;
};
template <class T>
concept IsParamType = requires { ParamTypeOf<T>::value; };

/// What a member of Params is.
template <class M>
struct ParamOf {
  static_assert(IsParamType<M> && !kSameType<M, uint8_t>,
                "a parameter is a float, int32_t or int64_t, or an Array of float, int32_t, int64_t or uint8_t");
  KVLOOM_HD static constexpr ParamDecl decl(const char* name, int32_t offset, double low, double high) {
    return {name, ParamTypeOf<M>::value, 0, {0, 0, 0}, offset, low, high};
  }
};
template <class T, int32_t... kDims>
struct ParamOf<Array<T, kDims...>> {
  static_assert(IsParamType<T>, "an Array is of float, int32_t, int64_t or uint8_t");
  KVLOOM_HD static constexpr ParamDecl decl(const char* name, int32_t offset, double low, double high) {
    ParamDecl d{name, ParamTypeOf<T>::value, int32_t(sizeof...(kDims)), {0, 0, 0}, offset, low, high};
    const int32_t dims[] = {kDims...};
    for (int32_t i = 0; i < d.ndim; ++i) d.dims[i] = dims[i];
    return d;
  }
};

template <int32_t kCount>
struct ParamList {
  static constexpr int32_t count = kCount;
  ParamDecl decl[kCount > 0 ? kCount : 1];
};
template <class... Decl>
KVLOOM_HD constexpr ParamList<int32_t(sizeof...(Decl))> param_list(Decl... d) { return {{d...}}; }

struct NoParams {};
template <class U>
struct ParamsOf {
  using type = NoParams;
};
template <class U>
requires requires { typename U::Params; }
struct ParamsOf<U> {
  using type = typename U::Params;
};

template <class U>
concept UserLogit = requires(float s, const Coord& c, const typename ParamsOf<U>::type& p) { { U::logit(s, c, p) } -> SameAs<float>; } ||
                    requires(float s, const Coord& c) { { U::logit(s, c) } -> SameAs<float>; };
template <class U>
concept UserKeep = requires(const Coord& c, const typename ParamsOf<U>::type& p) { { U::keep(c, p) } -> SameAs<bool>; } ||
                   requires(const Coord& c) { { U::keep(c) } -> SameAs<bool>; };
template <class U>
concept UserWeight = requires(float x, const typename ParamsOf<U>::type& p) { { U::weight(x, p) } -> SameAs<float>; } ||
                     requires(float x) { { U::weight(x) } -> SameAs<float>; };
template <class U>
concept UserSlope = requires(const Coord& c, const typename ParamsOf<U>::type& p) { { U::slope(c, p) } -> SameAs<float>; } ||
                    requires(const Coord& c) { { U::slope(c) } -> SameAs<float>; };
template <class U>
concept UserFinish = requires(float x, int32_t h, const typename ParamsOf<U>::type& p) { { U::finish(x, h, p) } -> SameAs<RowFinish>; } ||
                     requires(float x, int32_t h) { { U::finish(x, h) } -> SameAs<RowFinish>; };

/// is_chosen(0) where the preprocessor has left out the line KVLOOM_VARIANT(NAME), which has a better match.
KVLOOM_HD constexpr bool is_chosen(long) { return false; }

/// A user's struct with the hooks of the house, which take all parameters of a run.
template <class U>
struct User {
  using Params = typename ParamsOf<U>::type;
  static constexpr Reduction reduction = reduction_of<U>();

  template <class P>
  KVLOOM_HD static const Params& params(const P& p) { return *reinterpret_cast<const Params*>(p.user.bytes); }

  template <class P>
  requires UserLogit<U> KVLOOM_HD static float logit(float score, const Coord& c, const P& p) {
    if constexpr (requires { U::logit(score, c, params(p)); }) return U::logit(score, c, params(p));
    else return U::logit(score, c);
  }
  template <class P>
  requires UserSlope<U> KVLOOM_HD static float slope(const Coord& c, const P& p) {
    if constexpr (requires { U::slope(c, params(p)); }) return U::slope(c, params(p));
    else return U::slope(c);
  }
  template <class P>
  requires UserKeep<U> KVLOOM_HD static bool keep(const Coord& c, const P& p) {
    if constexpr (requires { U::keep(c, params(p)); }) return U::keep(c, params(p));
    else return U::keep(c);
  }
  template <class P>
  requires UserWeight<U> KVLOOM_HD static float weight(float logit, const P& p) {
    if constexpr (requires { U::weight(logit, params(p)); }) return U::weight(logit, params(p));
    else return U::weight(logit);
  }
  template <class P>
  requires UserFinish<U> KVLOOM_HD static RowFinish finish(float lse, int32_t q_head, const P& p) {
    if constexpr (requires { U::finish(lse, q_head, params(p)); }) return U::finish(lse, q_head, params(p));
    else return U::finish(lse, q_head);
  }
};

/// True if `decl` names every member: their sizes and gaps add up to the struct.
template <class Params, int32_t kCount>
KVLOOM_HD constexpr bool names_all(const ParamList<kCount>& list) {
  int64_t end = 0;
  for (int32_t i = 0; i < kCount; ++i) {
    const ParamDecl& d = list.decl[i];
    const int64_t number = size_of(d.type);
    const int64_t align = d.ndim > 0 ? 8 : number, bytes = d.ndim > 0 ? 8 + 8 * d.ndim + (4 * d.ndim + 7) / 8 * 8 : number;
    if (d.offset != (end + align - 1) / align * align) return false;
    end = d.offset + bytes;
  }
  return (end + int64_t(alignof(Params)) - 1) / int64_t(alignof(Params)) * int64_t(alignof(Params)) == int64_t(sizeof(Params));
}

template <class Params>
KVLOOM_HD constexpr bool names_its_params() {
  if constexpr (requires { Params::kvloom_params(); }) {
    return names_all<Params>(Params::kvloom_params());
  } else {
    return true;
  }
}

/// What can be wrong with a user's struct, a sentence each.
template <class U>
struct CheckUser {
  using Params = typename ParamsOf<U>::type;
  static constexpr bool kLogit = UserLogit<U>, kKeep = UserKeep<U>, kWeight = UserWeight<U>, kSlope = UserSlope<U>, kFinish = UserFinish<U>;
  static constexpr bool kSum = reduction_of<U>() == Reduction::sum, kRange = requires { U::range; };

  static_assert(kLogit || !requires { &U::logit; },
                "the logit hook is: static float logit(float score, const kvloom::Coord& c, const Params& p); no p without a Params");
  static_assert(kKeep || !requires { &U::keep; },
                "the keep hook is: static bool keep(const kvloom::Coord& c, const Params& p); no p without a Params");
  static_assert(kWeight || !requires { &U::weight; },
                "the weight hook is: static float weight(float logit, const Params& p); no p without a Params");
  static_assert(kSlope || !requires { &U::slope; },
                "the slope hook is: static float slope(const kvloom::Coord& c, const Params& p); no p without a Params");
  static_assert(kFinish || !requires { &U::finish; },
                "the finish hook is: static kvloom::RowFinish finish(float lse, int32_t q_head, const Params& p); no p without a Params");
  static_assert(!(requires { &U::mask; } || requires { &U::mask_mod; } || requires { &U::LogitsMask; } || requires { &U::score; } ||
                  requires { &U::score_mod; } || requires { &U::LogitsTransform; } || requires { &U::logits; } || requires { &U::weights; }),
                "the hooks are called logit, keep, weight, slope and finish");
  static_assert(!(requires { &U::query; } || requires { &U::key; } || requires { &U::value; }),
                "a user's variant has no query, key or value hook; fused RoPE is spec.variant.rope");
  static_assert(kLogit || kKeep || kWeight || kFinish || kRange || requires { &U::logit; } || requires { &U::keep; } || requires { &U::weight; } || requires { &U::finish; } ||
                    requires { &U::slope; },  // which of them is wrong stands above
                "a variant has at least one of logit, keep, weight, finish and range");
  static_assert(kSum == kWeight, "the weight hook and reduction = kvloom::Reduction::sum go together; softmax makes its own weights");
  static_assert(!kSlope || kLogit, "the slope hook stands beside a logit hook: logit is score + slope * (c.kv_pos - c.q_pos)");
  static_assert(!requires { typename U::Params; } || requires { Params::kvloom_params(); },
                "struct Params ends with KVLOOM_PARAMS(KVLOOM_PARAM(name, low, high), ...)");
  static_assert(sizeof(Params) <= kMaxUserBytes, "Params has at most 256 bytes: a number takes 4 or 8, an Array 24, 32 or 48");
  static_assert(names_its_params<Params>(), "KVLOOM_PARAMS names every member of Params, in their order");
};

}  // namespace variants
}  // namespace kvloom

/// A parameter, and the range that `kvloom check` draws its values from. Within KVLOOM_PARAMS.
#define KVLOOM_PARAM(name, low, high) \
  kvloom::variants::ParamOf<decltype(name)>::decl(#name, int32_t(__builtin_offsetof(Params, name)), low, high)

/// Closes `struct Params`: every member, in order. Read on the host alone, and so is what CheckUser says: it comes first.
#if defined(__CUDACC_RTC__)
#define KVLOOM_PARAMS(...)
#define KVLOOM_CHECK_VARIANT(...)
#else
#define KVLOOM_PARAMS(...) \
  static constexpr auto kvloom_params() { return kvloom::variants::param_list(__VA_ARGS__); }
#define KVLOOM_CHECK_VARIANT(...)                             \
  template struct kvloom::variants::CheckUser<::__VA_ARGS__>; \
  namespace kvloom::variants {                                \
  constexpr bool is_chosen(int) { return true; }              \
  }
#endif

/// Names the struct of the text; outside every namespace.
#define KVLOOM_VARIANT(...)                                \
  KVLOOM_CHECK_VARIANT(__VA_ARGS__)                        \
  namespace kvloom::variants {                             \
  using Chosen = ::__VA_ARGS__;                            \
  inline constexpr const char* kChosenName = #__VA_ARGS__; \
  }
