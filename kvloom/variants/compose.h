// Several variants as one: Compose<Alibi, SoftCap, CustomMask>. Logits pass through the parts as written (bias before cap); a key is kept
// when every part keeps it; at most one part may change the reduction, one turn queries and keys. A hook that a part lacks costs nothing.
#pragma once

#include "kvloom/contract/variant.h"

namespace kvloom::variants {

template <class V, class P>
concept HasLogit = requires(float s, const Coord& c, const P& p) {
  V::logit(s, c, p);
};
template <class V, class P>
concept HasKeep = requires(const Coord& c, const P& p) {
  V::keep(c, p);
};
template <class V, class P>
concept HasKeep32 = requires(const Coord& c, const P& p) {
  V::keep32(c, p);
};
/// keep32 in two steps: custom_mask.h.
template <class V, class P>
concept HasBegin32 = requires(const Coord& c, const P& p) {
  V::begin32(c, p).word();
};
template <class V, class P>
concept HasWeight = requires(float logit, const P& p) {
  V::weight(logit, p);
};

template <class V, class P>
concept HasFinish = requires(float lse, const P& p) {
  V::finish(lse, 0, p);
};

template <class V, class P>
concept HasQuery = requires(float x, const Coord& c, const P& p) {
  V::query(x, x, 0, c, p);
};
template <class V, class P>
concept HasKey = requires(float x, const Coord& c, const P& p) {
  V::key(x, x, 0, c, p);
};

/// softmax unless the variant says otherwise.
template <class V>
KVLOOM_HD constexpr Reduction reduction_of() {
  if constexpr (requires { V::reduction; }) {
    return V::reduction;
  } else {
    return Reduction::softmax;
  }
}

template <class... Parts>
struct Compose {
  static constexpr Reduction reduction = ((reduction_of<Parts>() == Reduction::sum) || ...) ? Reduction::sum : Reduction::softmax;

  template <class P>
  requires(HasLogit<Parts, P> || ...) KVLOOM_HD static float logit(float score, const Coord& c, const P& p) {
    ((score = logit_of<Parts>(score, c, p)), ...);
    return score;
  }

  template <class P>
  requires(HasKeep<Parts, P> || ...) KVLOOM_HD static bool keep(const Coord& c, const P& p) { return (keep_of<Parts>(c, p) && ...); }

  /// `keep` for 32 consecutive keys at once, the same for all heads of a token, where every part that masks knows that form.
  template <class P>
  requires((HasKeep32<Parts, P> || ...) && ((HasKeep32<Parts, P> || !HasKeep<Parts, P>)&&...)) KVLOOM_HD static uint32_t
      keep32(const Coord& c, const P& p) {
    return (keep32_of<Parts>(c, p) & ...);
  }

  /// The same in two steps (custom_mask.h), where one part alone masks.
  template <class P>
  requires((int(HasKeep<Parts, P>) + ...) == 1 && (HasBegin32<Parts, P> || ...)) KVLOOM_HD static auto begin32(const Coord& c, const P& p) {
    return Masking<P>::begin32(c, p);
  }
  template <class P>
  requires(HasWeight<Parts, P> || ...) KVLOOM_HD static float weight(float logit, const P& p) {
    ((logit = weight_of<Parts>(logit, p)), ...);
    return logit;
  }

  template <class P>
  requires(HasFinish<Parts, P> || ...) KVLOOM_HD static RowFinish finish(float lse, int32_t q_head, const P& p) {
    static_assert((int(HasFinish<Parts, P>) + ...) == 1, "at most one part of Compose may have a finish hook");
    RowFinish f{1.0f, lse};
    ((f = finish_of<Parts>(f, q_head, p)), ...);
    return f;
  }

  /// One part may turn queries and keys as they are loaded: a second would need the partner that the first has made.
  template <class P>
  requires(HasQuery<Parts, P> || ...) KVLOOM_HD static float query(float x, float partner, int dim, const Coord& c, const P& p) {
    static_assert((int(HasQuery<Parts, P>) + ...) == 1, "at most one part of Compose may have a query hook");
    ((x = query_of<Parts>(x, partner, dim, c, p)), ...);
    return x;
  }
  template <class P>
  requires(HasKey<Parts, P> || ...) KVLOOM_HD static float key(float x, float partner, int dim, const Coord& c, const P& p) {
    static_assert((int(HasKey<Parts, P>) + ...) == 1, "at most one part of Compose may have a key hook");
    ((x = key_of<Parts>(x, partner, dim, c, p)), ...);
    return x;
  }

 private:
  /// The first part that masks in two steps.
  template <class P, class V, class... Rest>
  static constexpr auto masking_part() {
    if constexpr (HasBegin32<V, P>)
      return V{};
    else
      return masking_part<P, Rest...>();
  }
  template <class P>
  using Masking = decltype(masking_part<P, Parts...>());

  template <class V, class P>
  KVLOOM_HD static float query_of(float x, float partner, int dim, const Coord& c, const P& p) {
    if constexpr (HasQuery<V, P>) return V::query(x, partner, dim, c, p);
    return x;
  }
  template <class V, class P>
  KVLOOM_HD static float key_of(float x, float partner, int dim, const Coord& c, const P& p) {
    if constexpr (HasKey<V, P>) return V::key(x, partner, dim, c, p);
    return x;
  }
  template <class V, class P>
  KVLOOM_HD static float logit_of(float score, const Coord& c, const P& p) {
    if constexpr (HasLogit<V, P>) return V::logit(score, c, p);
    return score;
  }
  template <class V, class P>
  KVLOOM_HD static bool keep_of(const Coord& c, const P& p) {
    if constexpr (HasKeep<V, P>) return V::keep(c, p);
    return true;
  }
  template <class V, class P>
  KVLOOM_HD static uint32_t keep32_of(const Coord& c, const P& p) {
    if constexpr (HasKeep32<V, P>) return V::keep32(c, p);
    return ~0u;
  }
  template <class V, class P>
  KVLOOM_HD static RowFinish finish_of(const RowFinish& f, int32_t q_head, const P& p) {
    if constexpr (HasFinish<V, P>) return V::finish(f.lse, q_head, p);
    return f;
  }
  template <class V, class P>
  KVLOOM_HD static float weight_of(float logit, const P& p) {
    if constexpr (HasWeight<V, P>) return V::weight(logit, p);
    return logit;
  }
};

}  // namespace kvloom::variants
