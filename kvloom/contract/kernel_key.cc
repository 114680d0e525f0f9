#include "kvloom/contract/kernel_key.h"

namespace kvloom {

std::string kernel_key(const char* task, const char* family, const AttentionSpec& s) {
  std::string key = task;
  key.append(".").append(family).append(".").append(name_of(s.q_dtype));
  if (s.kv_dtype != s.q_dtype) key.append(".kv-").append(name_of(s.kv_dtype));
  if (s.o_dtype != s.q_dtype) key.append(".o-").append(name_of(s.o_dtype));
  key += ".d" + std::to_string(s.head_dim_qk);
  if (s.head_dim_vo != s.head_dim_qk) key += "-" + std::to_string(s.head_dim_vo);
  key += s.storage == Storage::paged ? ".paged" : ".ragged";
  const VariantSpec& v = s.variant;
  if (v.range.causal) key += ".causal";
  if (v.range.left >= 0 || v.range.right >= 0) key += ".window";
  if (v.alibi) key += ".alibi";
  if (v.soft_cap > 0.0f) key += ".softcap";
  if (v.custom_mask) key += ".mask";
  if (v.sink) key += ".sink";
  if (v.reduction == Reduction::sum) key += ".sigmoid";
  if (v.rope.mode == RopeMode::interleaved) key += ".rope-interleaved";
  if (v.rope.mode == RopeMode::half_split) key += ".rope-half";
  return key;
}

}  // namespace kvloom
