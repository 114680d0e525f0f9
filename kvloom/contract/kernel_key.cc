#include "kvloom/contract/kernel_key.h"

#include "kvloom/contract/user_variant.h"

#include <charconv>
#include <string_view>

namespace kvloom {
namespace {

constexpr int32_t kFewestWords = 5;  // task, family, type, dims, storage
constexpr int32_t kMostDigits = 5;   // of a head dim

bool parse_dtype(const std::string& word, DType& out) {
  for (int t = 0; t < kNumDTypes; ++t) {
    if (word != name_of(DType(t))) continue;
    out = DType(t);
    return true;
  }
  return false;
}

/// Digits alone, and no more of them than any head dim has.
bool parse_dim(std::string_view word, int32_t& out) {
  const char* const end = word.data() + word.size();
  return word.size() <= size_t(kMostDigits) && std::from_chars(word.data(), end, out).ptr == end && out > 0;
}

/// "d128", "d576-512".
bool parse_dims(std::string_view word, AttentionSpec& s) {
  if (!word.starts_with('d')) return false;
  const size_t dash = word.find('-');
  if (!parse_dim(word.substr(1, dash - 1), s.head_dim_qk)) return false;
  s.head_dim_vo = s.head_dim_qk;
  return dash == std::string_view::npos || parse_dim(word.substr(dash + 1), s.head_dim_vo);
}

bool parse_word(const std::string& word, ParsedKey& k) {
  AttentionSpec& s = k.spec;
  VariantSpec& v = s.variant;
  if (word.rfind("kv-", 0) == 0) return parse_dtype(word.substr(3), s.kv_dtype);
  if (word.rfind("o-", 0) == 0) return parse_dtype(word.substr(2), s.o_dtype);
  if (parse_dims(word, s)) return true;
  if (word == "paged" || word == "ragged") return s.storage = word == "paged" ? Storage::paged : Storage::ragged, true;
  if (word == "causal") return v.range.causal = true;
  if (word == "window") return v.range.left = 127, true;
  if (word == "alibi") return v.alibi = true;
  if (word == "softcap") return v.soft_cap = 30.0f, true;
  if (word == "mask") return v.custom_mask = true;
  if (word == "sink") return v.sink = true;
  if (word == "sigmoid") return v.reduction = Reduction::sum, true;
  if (word == "rope-interleaved") return v.rope.mode = RopeMode::interleaved, true;
  if (word == "rope-half") return v.rope.mode = RopeMode::half_split, true;
  if (word.rfind("user-", 0) == 0) return k.user = word.substr(5), !k.user.empty();
  if (word == "fixed-split") return k.fixed_split = true;
  return false;
}

}  // namespace

ParsedKey parse_kernel_key(const std::string& key) {
  ParsedKey k;
  k.spec.num_qo_heads = k.spec.num_kv_heads = 1;
  int32_t number = 0;
  for (size_t begin = 0; begin <= key.size(); ++number) {
    const size_t end = key.find('.', begin) == std::string::npos ? key.size() : key.find('.', begin);
    const std::string word = key.substr(begin, end - begin);
    begin = end + 1;
    bool known = true;
    if (number == 0) {
      k.task = word;
    } else if (number == 1) {
      k.family = word;
    } else if (number == 2) {
      known = parse_dtype(word, k.spec.q_dtype);
      k.spec.kv_dtype = k.spec.o_dtype = k.spec.q_dtype;
    } else {
      known = parse_word(word, k);
    }
    if (!known && k.fault.empty()) k.fault = word.empty() ? "an empty word" : word;
  }
  // The one spelling, or none at all: words out of order, twice or missing.
  std::string same = k.family.empty() ? "" : kernel_key(k.task.c_str(), k.family.c_str(), k.spec, false);
  if (!k.user.empty()) same += ".user-" + k.user;
  if (k.fixed_split) same += ".fixed-split";
  if (k.fault.empty() && !k.family.empty() && k.spec.head_dim_qk == 0) k.fault = "no word for the head dim, like d128";
  if (k.fault.empty() && same != key) k.fault = same.empty() ? key : "words missing, twice or out of order (it is spelt " + same + ")";
  if (k.fault.empty() && number < kFewestWords) k.fault = "too few words";
  if (k.spec.storage == Storage::ragged) k.spec.page_size = 1;
  return k;
}

std::string kernel_key(const char* task, const char* family, const AttentionSpec& s, bool fixed_split) {
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
  if (v.user != nullptr) key.append(".user-").append(v.user->name);
  if (fixed_split) key += ".fixed-split";
  return key;
}

std::string unit_key(const char* family, const AttentionSpec& spec, bool fixed_split) {
  AttentionSpec code = spec;
  code.variant.range = {};
  code.variant.sink = false;
  return kernel_key("attend", family, code, fixed_split);
}

}  // namespace kvloom
