#include "kvloom/base/mix.h"
#include "kvloom/contract/user_variant.h"
#include "kvloom/plan/layout.h"

#include <cstring>

namespace kvloom::plan {
namespace {

/// A key of a handful of fields, a word at a time.
class Hash {
 public:
  template <class T>
  Hash& add(T value) {
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(T));  // a float by its bits
    state_ = mix64(state_ ^ word);
    return *this;
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

void add_spec(Hash& hash, const AttentionSpec& s) {
  hash.add(s.num_qo_heads).add(s.num_kv_heads).add(s.head_dim_qk).add(s.head_dim_vo);
  hash.add(s.q_dtype).add(s.kv_dtype).add(s.o_dtype).add(s.storage).add(s.page_size).add(s.sm_scale);
  const VariantSpec& v = s.variant;
  hash.add(v.range.causal).add(v.range.left).add(v.range.right).add(v.soft_cap).add(v.alibi).add(v.custom_mask).add(v.sink);
  hash.add(v.reduction).add(v.sigmoid_bias);
  hash.add(v.rope.mode).add(v.rope.rotary_dim).add(v.rope.theta).add(v.rope.scaling).add(v.rope.low_freq_factor);
  hash.add(v.rope.high_freq_factor).add(v.rope.original_context);
  if (v.user != nullptr) hash.add(v.user->digest);
}

}  // namespace

uint64_t graph_key(const AttentionSpec& spec, const PlanHeader& h, bool uses_class0, bool uses_class1) {
  Hash hash;
  add_spec(hash, spec);
  for (const KernelClass& k : h.classes) hash.add(k.tile_rows).add(k.tile_kv).add(k.heads_per_item);
  hash.add(uses_class0).add(uses_class1).add(h.num_ctas).add(h.split_tokens).add(h.num_levels).add(h.num_row_entries > 0);
  hash.add(h.groups_offset).add(h.row_entries_offset).add(h.cta_indptr_offset).add(h.items_offset).add(h.units_offset);
  hash.add(h.entries_offset).add(h.touches_offset).add(h.total_bytes);
  return hash.value();
}

}  // namespace kvloom::plan
