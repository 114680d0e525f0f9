// Which hooks a variant has, and the parameters that hooks see on the device.
#pragma once

#include "kvloom/contract/attend_args.h"
#include "kvloom/device/block/turns.cuh"

namespace kvloom::block {

/// VariantParams, and the sines that rotating hooks ask for.
struct HookParams : VariantParams {
  const uint64_t* turns;  // shared memory, [rotary_dim / 2]: turns per position

  __device__ __forceinline__ HookParams(const VariantParams& p, const uint64_t* t, int32_t head_dim) : VariantParams(p), turns(t) {
    rope.rotary_dim = p.rope.mode == RopeMode::none ? 0 : rotary_dim(p.rope, head_dim);
  }
  __device__ __forceinline__ float rope_cos(int32_t pos, int pair) const { return turn_cos(turns[pair], pos); }
  __device__ __forceinline__ float rope_sin(int32_t pos, int pair) const { return turn_sin(turns[pair], pos); }
};

template <class V>
KVLOOM_HD constexpr bool has_logit() {
  return requires(float s, const Coord& c, const VariantParams& p) { V::logit(s, c, p); };
}
template <class V>
KVLOOM_HD constexpr bool has_slope() {
  return requires(const Coord& c, const VariantParams& p) { V::slope(c, p); };
}
template <class V>
KVLOOM_HD constexpr bool has_squash() {
  return requires(float x, const VariantParams& p) { V::squash_near(x); V::bound(p); };
}
template <class V>
KVLOOM_HD constexpr bool has_keep() {
  return requires(const Coord& c, const VariantParams& p) { V::keep(c, p); };
}
template <class V>
KVLOOM_HD constexpr bool has_begin32() {
  return requires(const Coord& c, const VariantParams& p) { V::begin32(c, p).word(); };
}
template <class V>
KVLOOM_HD constexpr bool has_keep32() {
  return requires(const Coord& c, const VariantParams& p) { V::keep32(c, p); };
}
template <class V>
KVLOOM_HD constexpr bool has_weight() {
  return requires(float s, const VariantParams& p) { V::weight(s, p); };
}
template <class V>
KVLOOM_HD constexpr bool has_finish() {
  return requires(float lse, const VariantParams& p) { V::finish(lse, 0, p); };
}
template <class V>
KVLOOM_HD constexpr bool has_query() {
  return requires(float x, const Coord& c, const HookParams& p) { V::query(x, x, 0, c, p); };
}
template <class V>
KVLOOM_HD constexpr bool has_key() {
  return requires(float x, const Coord& c, const HookParams& p) { V::key(x, x, 0, c, p); };
}

}  // namespace kvloom::block
