#include "kvloom/api/spec_check.h"

#include "kvloom/support/check.h"

#include <cmath>

namespace kvloom::api {
namespace {

constexpr int32_t kMaxHeads = 4096;
constexpr int32_t kMaxPageSize = 1 << 20;  // tokens
constexpr int64_t kMaxRows = (int64_t(1) << 31) - 1;

void check_shape(const AttentionSpec& s) {
  require(s.num_kv_heads >= 1 && s.num_kv_heads <= kMaxHeads, "Engine: spec.num_kv_heads: got {}, wanted 1 .. {}", s.num_kv_heads,
          kMaxHeads);
  require(s.num_qo_heads >= 1 && s.num_qo_heads <= kMaxHeads, "Engine: spec.num_qo_heads: got {}, wanted 1 .. {}", s.num_qo_heads,
          kMaxHeads);
  require(s.num_qo_heads % s.num_kv_heads == 0,
          "Engine: spec.num_qo_heads: got {} over {} KV heads, wanted a multiple of num_kv_heads; every KV head serves the same number of "
          "query heads",
          s.num_qo_heads, s.num_kv_heads);
  require(s.head_dim_qk >= 1, "Engine: spec.head_dim_qk: got {}, wanted at least 1", s.head_dim_qk);
  require(s.head_dim_vo >= 1, "Engine: spec.head_dim_vo: got {}, wanted at least 1; it equals head_dim_qk unless V is of another width",
          s.head_dim_vo);
}

constexpr const char* kDTypeList = "f32 (0), f16 (1), bf16 (2), e4m3 (3) or e5m2 (4)";

void check_types(const AttentionSpec& s) {
  require(is_dtype(s.q_dtype), "Engine: spec.q_dtype: got {}, wanted {}", int(s.q_dtype), kDTypeList);
  require(is_dtype(s.kv_dtype), "Engine: spec.kv_dtype: got {}, wanted {}", int(s.kv_dtype), kDTypeList);
  require(is_dtype(s.o_dtype) && !is_fp8(s.o_dtype),
          "Engine: spec.o_dtype: got {}, wanted f32, f16 or bf16; quantise the output afterwards",
          is_dtype(s.o_dtype) ? name_of(s.o_dtype) : std::to_string(int(s.o_dtype)));
  require(s.storage == Storage::ragged || s.storage == Storage::paged, "Engine: spec.storage: got {}, wanted ragged (0) or paged (1)",
          int(s.storage));
  if (s.storage == Storage::paged) {
    require(s.page_size >= 1 && s.page_size <= kMaxPageSize, "Engine: spec.page_size: got {}, wanted 1 .. {} tokens", s.page_size,
            kMaxPageSize);
  }
  require(std::isfinite(s.sm_scale) && s.sm_scale >= 0.0f,
          "Engine: spec.sm_scale: got {}, wanted a finite number above 0, or 0 for 1 / sqrt(head_dim_qk)", s.sm_scale);
}

void check_variant(const AttentionSpec& s) {
  const VariantSpec& v = s.variant;
  require(v.range.left >= -1, "Engine: spec.variant.range.left: got {}, wanted -1 (no window) or the number of keys left of the row's own",
          v.range.left);
  require(v.range.right >= -1,
          "Engine: spec.variant.range.right: got {}, wanted -1 (no bound) or the number of keys right of the row's own", v.range.right);
  require(std::isfinite(v.soft_cap) && v.soft_cap >= 0.0f,
          "Engine: spec.variant.soft_cap: got {}, wanted a finite number above 0, or 0 for none", v.soft_cap);
  require(v.reduction == Reduction::softmax || v.reduction == Reduction::sum,
          "Engine: spec.variant.reduction: got {}, wanted softmax (0) or sum (1)", int(v.reduction));
  require(!(v.reduction == Reduction::sum && v.sink),
          "Engine: spec.variant.sink: got true with reduction sum, wanted false; a sink is a term of the softmax denominator");
  require(std::isfinite(v.sigmoid_bias), "Engine: spec.variant.sigmoid_bias: got {}, wanted a finite number", v.sigmoid_bias);
  require(v.reduction == Reduction::sum || v.sigmoid_bias == 0.0f,
          "Engine: spec.variant.sigmoid_bias: got {} with reduction softmax, wanted 0; it is read by reduction sum alone", v.sigmoid_bias);
  check_rope(v.rope, s.head_dim_qk, "Engine: spec.variant");
}

/// What a user's variant can't be combined with.
void check_user_variant(const VariantSpec& v) {
  if (v.user == nullptr) return;
  require(!(v.user->finish != nullptr && v.sink),
          "Engine: spec.variant.sink: got true with {}, which has a finish hook, wanted one of them", v.user->name);
  require(v.user->reduction == Reduction::softmax || v.sigmoid_bias == 0.0f,
          "Engine: spec.variant.sigmoid_bias: got {} with {}, which makes its own weights, wanted 0", v.sigmoid_bias, v.user->name);
}

}  // namespace

void check_rope(const RopeSpec& r, int32_t head_dim, const char* where) {
  require(r.mode == RopeMode::none || r.mode == RopeMode::interleaved || r.mode == RopeMode::half_split,
          "{}: rope.mode: got {}, wanted none (0), interleaved (1) or half_split (2)", where, int(r.mode));
  if (r.mode == RopeMode::none) {
    require(r.rotary_dim == 0, "{}: rope.rotary_dim: got {} with mode none, wanted 0; set rope.mode to rotate", where, r.rotary_dim);
    return;
  }
  const int32_t dim = r.rotary_dim == 0 ? head_dim : r.rotary_dim;
  require(dim >= 2 && dim % 2 == 0 && dim <= head_dim,
          "{}: rope.rotary_dim: got {}, wanted an even number 2 .. {} (the head dim), or 0 for "
          "the whole of an even head dim",
          where, r.rotary_dim, head_dim);
  require(std::isfinite(r.theta) && r.theta > 0.0f, "{}: rope.theta: got {}, wanted a finite number above 0", where, r.theta);
  require(std::isfinite(r.scaling) && r.scaling > 0.0f, "{}: rope.scaling: got {}, wanted a finite number above 0", where, r.scaling);
  require(std::isfinite(r.high_freq_factor) && r.high_freq_factor >= 0.0f && std::isfinite(r.low_freq_factor) && r.low_freq_factor >= 0.0f,
          "{}: rope.low_freq_factor, rope.high_freq_factor: got {} and {}, wanted finite numbers, not negative", where, r.low_freq_factor,
          r.high_freq_factor);
  if (r.high_freq_factor > 0.0f) {
    require(r.low_freq_factor < r.high_freq_factor, "{}: rope.low_freq_factor: got {}, wanted less than high_freq_factor {}", where,
            r.low_freq_factor, r.high_freq_factor);
    require(std::isfinite(r.original_context) && r.original_context > 0.0f,
            "{}: rope.original_context: got {}, wanted the context length the model was first trained with", where, r.original_context);
  }
}

AttentionSpec checked_spec(const AttentionSpec& spec) {
  check_shape(spec);
  check_types(spec);
  AttentionSpec s = with_user_variant(spec);
  check_variant(s);
  check_user_variant(spec.variant);
  if (s.storage == Storage::ragged) s.page_size = 1;
  return s;
}

void check_capacity(const Capacity& c, const AttentionSpec& spec) {
  const int64_t max_tokens = kMaxRows / spec.group_size();
  require(c.max_requests >= 0, "Engine: capacity.max_requests: got {}, wanted at least 0", c.max_requests);
  require(c.max_query_tokens >= 0 && c.max_query_tokens <= max_tokens,
          "Engine: capacity.max_query_tokens: got {}, wanted 0 .. {} (2^31 packed rows over {} query heads a KV head); run longer steps in "
          "pieces",
          c.max_query_tokens, max_tokens, spec.group_size());
  require(c.max_kv_tokens >= 0, "Engine: capacity.max_kv_tokens: got {}, wanted at least 0", c.max_kv_tokens);
  require(c.max_level_rows >= 0 && c.max_level_rows <= max_tokens, "Engine: capacity.max_level_rows: got {}, wanted 0 .. {}",
          c.max_level_rows, max_tokens);
  require(c.max_groups >= 0, "Engine: capacity.max_groups: got {}, wanted at least 0 (0: derived)", c.max_groups);
}

void check_options(const EngineOptions& o) {
  require(o.backend >= Backend::cpu && o.backend <= Backend::automatic,
          "Engine: options.backend: got {}, wanted cpu (0), cuda (1) or automatic (2)", int(o.backend));
  require(o.device >= -1, "Engine: options.device: got {}, wanted the ordinal of a GPU, or -1 for that of the current context", o.device);
  require(o.cuda_arch == nullptr || o.backend == Backend::cuda,
          "Engine: options.cuda_arch: got {} with backend {}, wanted it with cuda alone", o.cuda_arch != nullptr ? o.cuda_arch : "",
          name_of(o.backend));
  require(o.cpu_target == nullptr || o.backend != Backend::cuda, "Engine: options.cpu_target: got {} with backend cuda, wanted it with cpu or automatic",
          o.cpu_target != nullptr ? o.cpu_target : "");
  require(o.threads >= 0 && o.threads <= 4096, "Engine: options.threads: got {}, wanted 1 .. 4096, or 0 for one a core", o.threads);
  require(o.num_ctas >= 0 && o.num_ctas <= 65535, "Engine: options.num_ctas: got {}, wanted 1 .. 65535, or 0 for the backend's own",
          o.num_ctas);
  require(o.policy >= Policy::none && o.policy <= Policy::automatic,
          "Engine: options.policy: got {}, wanted none (0), heap (1), stream (2), "
          "fill (3), fixed_split (4) or automatic (5)",
          int(o.policy));
  require(o.levels == LevelMode::off || o.levels == LevelMode::automatic, "Engine: options.levels: got {}, wanted off (0) or automatic (1)",
          int(o.levels));
  require(o.split_tokens >= 0, "Engine: options.split_tokens: got {}, wanted a number of tokens, or 0 for the backend's own",
          o.split_tokens);
}

}  // namespace kvloom::api
