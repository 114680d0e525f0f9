// What a variant is: the features of an attention that change its kernel or its planning, and the hooks of a variant struct.
//
// A variant is a plain C++ struct of static functions, compiled unchanged by g++/clang, nvcc and NVRTC. Every hook is optional; P has the
// fields of VariantParams (contract/params.h), for RoPE also rope_cos(pos, pair) and rope_sin(pos, pair):
//   template <class P> static float logit(float score, const Coord& c, const P& p);   // score = sm_scale * q.k; returns the logit
//   template <class P> static float slope(const Coord& c, const P& p);                // beside logit: it is score + slope * (kv_pos - q_pos)
//   template <class P> static bool  keep(const Coord& c, const P& p);                 // false: masked out (keep32: 32 keys)
//   template <class P> static float query(float x, float partner, int dim, const Coord& c, const P& p);   // fused RoPE
//   template <class P> static float key  (float x, float partner, int dim, const Coord& c, const P& p);
//   static constexpr Reduction reduction;                                              // default: softmax
//   template <class P> static float weight(float logit, const P& p);                   // `sum` only: the weight of a key
// Composition order: scale, bias/ALiBi, soft cap, mask, sink (no hook: who writes a final row adds it). Which keys a planner may skip is
// data (KeyRange), not code. docs/variants.md: a variant as text of the user's own; docs/MAP.md, Adding: what one of the library touches.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom {

/// How the keys of a row are combined. `softmax`: states (O, LSE) merge by log-sum-exp. `sum`: O adds up and there is no LSE
/// (FlashSigmoid); asking for an LSE is refused.
enum class Reduction : uint8_t { softmax = 0, sum = 1 };

/// What a finished row becomes, once, by whoever writes it: O is multiplied by `factor`, and its LSE is `lse`.
struct RowFinish {
  float factor;
  float lse;
};

/// Which dims of a head RoPE pairs: `interleaved` rotates (2i, 2i+1), `half_split` rotates (i, i + rotary_dim/2).
enum class RopeMode : uint8_t { none = 0, interleaved = 1, half_split = 2 };

/// Where one (query row, key) pair stands. Positions are absolute within the request; indices count rows and list entries.
struct Coord {
  int32_t request;   // index of the request in the batch
  int32_t q_index;   // 0-based query token within the request's new tokens
  int32_t q_pos;     // position of that token
  int32_t kv_index;  // 0-based token within the request's KV list: the column of a custom mask
  int32_t kv_pos;    // position of that key
  int32_t q_head;    // 0 .. num_qo_heads-1
  int32_t kv_head;   // 0 .. num_kv_heads-1
};

/// The keys of a row, as data that the planner can reason about. A key at kv_pos is kept by a row at q_pos when
///   kv_pos < prefix (the request's bidirectional prefix, or attention sinks), or
///   (not causal or kv_pos <= q_pos) and (left < 0 or kv_pos >= q_pos - left) and (right < 0 or kv_pos <= q_pos + right).
/// A window `left` keeps left + 1 keys, the row's own included. -1 means no bound; 0 means a bound of zero.
struct KeyRange {
  bool causal = false;
  int32_t left = -1;
  int32_t right = -1;

  constexpr bool operator==(const KeyRange&) const = default;
};

/// RoPE in the form Llama 3.1 uses (frequencies scaled by wavelength); scaling == 1 and low == high == 0 is plain RoPE.
///   angle(pos, i) = pos * inv_freq(i), inv_freq(i) = theta^(-2 i / rotary_dim) / scaling,  i = 0 .. rotary_dim/2 - 1
/// With high_freq_factor > 0, wavelengths shorter than original_context / high_freq_factor are left unscaled, those longer than
/// original_context / low_freq_factor are divided by `scaling`, and in between the two are blended linearly in
/// original_context / wavelength (Llama 3.1 release notes; the same rule as transformers' "llama3" rope type).
struct RopeSpec {
  RopeMode mode = RopeMode::none;
  int32_t rotary_dim = 0;  // even, 0 < rotary_dim <= head_dim_qk; 0 with a mode means the whole head
  float theta = 10000.0f;
  float scaling = 1.0f;
  float low_freq_factor = 0.0f;
  float high_freq_factor = 0.0f;
  float original_context = 8192.0f;

  constexpr bool operator==(const RopeSpec&) const = default;
};

struct UserVariant;  // contract/user_variant.h

/// The variant of an attention: a combination of features, each with its value. Values do not enter the kernel key, presence does.
struct VariantSpec {
  KeyRange range;
  float soft_cap = 0.0f;      // > 0: logit = soft_cap * tanh(logit / soft_cap)
  bool alibi = false;         // logit += slope[q_head] * (kv_pos - q_pos); slopes are the caller's, never derived from the head count
  bool custom_mask = false;   // bit-packed mask, little bit order: bit (q_index * kv_len + kv_index) of the request's bytes
  bool sink = false;          // softmax denominator gains exp(sink[q_head]), once per final row; no value term
  Reduction reduction = Reduction::softmax;
  float sigmoid_bias = 0.0f;  // `sum`: weight = sigmoid(logit + sigmoid_bias)
  RopeSpec rope;
  const UserVariant* user = nullptr;  // of the user's own, on top of the others (after the soft cap); api/user_variant.h

  constexpr bool operator==(const VariantSpec&) const = default;
};

}  // namespace kvloom
