// The tensors and scalars of one run. Pointers are the caller's and live where the backend runs; strides are in elements.
#pragma once

#include "kvloom/contract/index_view.h"
#include "kvloom/contract/spec.h"

namespace kvloom {

/// K and V as two separate strided views, so NHD, HND, K beside V in one page, and MLA (V inside K) are the same code.
/// Token t of page p, KV head h, dim d lies at  p * page + t * token + h * head + d  (all 64-bit). Ragged storage: page == token.
struct KvView {
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t k_page = 0, k_token = 0, k_head = 0;  // strides, elements
  int64_t v_page = 0, v_token = 0, v_head = 0;
  int64_t num_pages = 0;                        // pages (ragged: tokens) behind the pointers; 0: unknown, not checked
};

/// Per-tensor scales of quantised Q, K, V; with per_head pointers, head h's scale replaces the scalar.
struct ScaleParams {
  float q = 1.0f;
  float k = 1.0f;
  float v = 1.0f;
  const float* k_per_head = nullptr;  // [num_kv_heads]
  const float* v_per_head = nullptr;  // [num_kv_heads]
};

inline constexpr int32_t kMaxUserBytes = 256;

/// Values of the parameters of a user's variant, where ParamDecl (contract/user_variant.h) says. By value: a captured graph keeps them.
struct UserParams {
  alignas(8) unsigned char bytes[kMaxUserBytes] = {};
};

/// What the hooks of a variant read.
struct VariantParams {
  float sm_scale = 1.0f;                // final: never 0 here
  float soft_cap = 0.0f;
  float sigmoid_bias = 0.0f;
  KeyRange range;
  RopeSpec rope;
  const float* alibi_slopes = nullptr;  // [num_qo_heads]
  const float* sink = nullptr;          // [num_qo_heads], logits
  const uint8_t* mask = nullptr;        // packed bits, little bit order
  const int64_t* mask_indptr = nullptr; // [num_requests + 1] byte offsets into `mask`
  const int32_t* mask_kv_len = nullptr; // [num_requests] columns of a request's mask
  ScaleParams scale;
  UserParams user;
};

struct AttendParams {
  const void* q = nullptr;              // [query tokens, num_qo_heads, head_dim_qk]
  int64_t q_token = 0, q_head = 0;      // strides, elements
  void* o = nullptr;                    // [query tokens, num_qo_heads, head_dim_vo]
  int64_t o_token = 0, o_head = 0;
  float* lse = nullptr;                 // [query tokens, num_qo_heads], natural log; nullptr: not wanted
  int64_t lse_token = 0, lse_head = 0;
  KvView kv;
  IndexView pages;                      // the same array the plan was made from (not given: ragged)
  const int32_t* page_pos = nullptr;    // parallel to `pages`, KvPosition::page_table only
  VariantParams variant;
  bool bare_state = false;              // leave the sink out: the caller merges states itself and applies it once
};

}  // namespace kvloom
