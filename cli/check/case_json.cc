#include "cli/check/case_json.h"

#include "kvloom/support/check.h"

#include <fstream>

namespace kvloom::check {
namespace {

using Json = nlohmann::ordered_json;

template <class E>
struct Word {
  E value;
  const char* word;
};
template <class E>
struct Words;  // the spelling of an enum
template <>
struct Words<DType> {
  static constexpr Word<DType> list[] = {
      {DType::f32, "f32"}, {DType::f16, "f16"}, {DType::bf16, "bf16"}, {DType::e4m3, "e4m3"}, {DType::e5m2, "e5m2"}};
};
template <>
struct Words<Storage> {
  static constexpr Word<Storage> list[] = {{Storage::ragged, "ragged"}, {Storage::paged, "paged"}};
};
template <>
struct Words<Reduction> {
  static constexpr Word<Reduction> list[] = {{Reduction::softmax, "softmax"}, {Reduction::sum, "sum"}};
};
template <>
struct Words<RopeMode> {
  static constexpr Word<RopeMode> list[] = {
      {RopeMode::none, "none"}, {RopeMode::interleaved, "interleaved"}, {RopeMode::half_split, "half_split"}};
};
template <>
struct Words<KvPosition> {
  static constexpr Word<KvPosition> list[] = {
      {KvPosition::linear, "linear"}, {KvPosition::page_table, "page_table"}, {KvPosition::page_id, "page_id"}};
};
template <>
struct Words<KvLayout> {
  static constexpr Word<KvLayout> list[] = {{KvLayout::nhd, "nhd"}, {KvLayout::hnd, "hnd"}};
};
template <>
struct Words<Placement> {
  static constexpr Word<Placement> list[] = {{Placement::separate, "separate"},
                                             {Placement::kv_in_page, "kv_in_page"},
                                             {Placement::kv_in_row, "kv_in_row"},
                                             {Placement::mla, "mla"},
                                             {Placement::padded, "padded"}};
};
template <>
struct Words<QView> {
  static constexpr Word<QView> list[] = {{QView::dense, "dense"}, {QView::fused_qkv, "fused_qkv"}, {QView::head_major, "head_major"}};
};
template <>
struct Words<OView> {
  static constexpr Word<OView> list[] = {{OView::dense, "dense"}, {OView::every_other, "every_other"}, {OView::head_major, "head_major"}};
};
template <>
struct Words<MaskKind> {
  static constexpr Word<MaskKind> list[] = {{MaskKind::none, "none"},
                                            {MaskKind::random, "random"},
                                            {MaskKind::tree, "tree"},
                                            {MaskKind::empty_rows, "empty_rows"},
                                            {MaskKind::corner, "corner"},
                                            {MaskKind::stripes, "stripes"}};
};

/// One visit of the fields serves both directions: reading takes what is there, writing leaves defaults out.
class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    require(json.is_object(), "cases: {}: got {}, wanted an object", where_, json.type_name());
  }
  template <class T>
  void field(const char* key, T& x, const T&) {
    const auto it = json_.find(key);
    known_.push_back(key);
    if (it == json_.end()) return;
    read(*it, key, x);
  }
  template <class T, class Visit>
  void object(const char* key, T& x, const T& unset, Visit visit) {
    const auto it = json_.find(key);
    known_.push_back(key);
    if (it == json_.end()) return;
    Reader inner(*it, where_ + "." + key);
    visit(inner, x, unset);
    inner.finish();
  }
  template <class T, class Visit>
  void objects(const char* key, std::vector<T>& x, Visit visit) {
    const auto it = json_.find(key);
    known_.push_back(key);
    if (it == json_.end()) return;
    for (const Json& element : *it) {
      Reader inner(element, where_ + "." + key);
      x.emplace_back();
      visit(inner, x.back(), T{});
      inner.finish();
    }
  }
  void finish() const {
    for (const auto& [key, value] : json_.items()) {
      bool found = false;
      for (const std::string& k : known_) found = found || k == key;
      require(found, "cases: {}: key: got \"{}\", wanted a field of a case; see tests/cases/README.md", where_, key);
    }
  }

 private:
  template <class T>
  void read(const Json& j, const char* key, T& x) {
    if constexpr (std::is_enum_v<T>) {
      for (const Word<T>& w : Words<T>::list) {
        if (j == w.word) {
          x = w.value;
          return;
        }
      }
      fail(ErrorCode::invalid_argument, "cases: {}.{}: got {}, wanted one of its words; see tests/cases/README.md", where_, key, j.dump());
    } else {
      try {
        j.get_to(x);
      } catch (const Json::exception&) {
        fail(ErrorCode::invalid_argument, "cases: {}.{}: got {}, wanted another type; see tests/cases/README.md", where_, key, j.dump());
      }
    }
  }

  const Json& json_;
  std::string where_;
  std::vector<std::string> known_;
};

class Writer {
 public:
  template <class T>
  void field(const char* key, const T& x, const T& unset) {
    if (x == unset) return;
    if constexpr (std::is_enum_v<T>) {
      for (const Word<T>& w : Words<T>::list) {
        if (w.value == x) json_[key] = w.word;
      }
    } else {
      json_[key] = x;
    }
  }
  template <class T, class Visit>
  void object(const char* key, T& x, const T& unset, Visit visit) {
    Writer inner;
    visit(inner, x, unset);
    if (!inner.json_.empty()) json_[key] = inner.json_;
  }
  template <class T, class Visit>
  void objects(const char* key, std::vector<T>& x, Visit visit) {
    for (T& element : x) {
      Writer inner;
      visit(inner, element, T{});
      json_[key].push_back(inner.json_);
    }
  }
  Json take() { return std::move(json_); }

 private:
  Json json_ = Json::object();
};

auto visit_range = [](auto& a, KeyRange& x, const KeyRange& d) {
  a.field("causal", x.causal, d.causal);
  a.field("left", x.left, d.left);
  a.field("right", x.right, d.right);
};
auto visit_rope = [](auto& a, RopeSpec& x, const RopeSpec& d) {
  a.field("mode", x.mode, d.mode);
  a.field("rotary_dim", x.rotary_dim, d.rotary_dim);
  a.field("theta", x.theta, d.theta);
  a.field("scaling", x.scaling, d.scaling);
  a.field("low_freq_factor", x.low_freq_factor, d.low_freq_factor);
  a.field("high_freq_factor", x.high_freq_factor, d.high_freq_factor);
  a.field("original_context", x.original_context, d.original_context);
};
auto visit_variant = [](auto& a, VariantSpec& x, const VariantSpec& d) {
  a.object("range", x.range, d.range, visit_range);
  a.field("soft_cap", x.soft_cap, d.soft_cap);
  a.field("alibi", x.alibi, d.alibi);
  a.field("custom_mask", x.custom_mask, d.custom_mask);
  a.field("sink", x.sink, d.sink);
  a.field("reduction", x.reduction, d.reduction);
  a.field("sigmoid_bias", x.sigmoid_bias, d.sigmoid_bias);
  a.object("rope", x.rope, d.rope, visit_rope);
};
auto visit_spec = [](auto& a, AttentionSpec& x, const AttentionSpec& d) {
  a.field("num_qo_heads", x.num_qo_heads, d.num_qo_heads);
  a.field("num_kv_heads", x.num_kv_heads, d.num_kv_heads);
  a.field("head_dim_qk", x.head_dim_qk, d.head_dim_qk);
  a.field("head_dim_vo", x.head_dim_vo, d.head_dim_vo);
  a.field("q_dtype", x.q_dtype, d.q_dtype);
  a.field("kv_dtype", x.kv_dtype, d.kv_dtype);
  a.field("o_dtype", x.o_dtype, d.o_dtype);
  a.field("storage", x.storage, d.storage);
  a.field("page_size", x.page_size, d.page_size);
  a.field("sm_scale", x.sm_scale, d.sm_scale);
  a.object("variant", x.variant, d.variant, visit_variant);
};
auto visit_shared = [](auto& a, SharedPrefix& x, const SharedPrefix& d) {
  a.field("pages", x.pages, d.pages);
  a.field("requests", x.requests, d.requests);
};
auto visit_group = [](auto& a, CaseGroup& x, const CaseGroup& d) {
  a.field("level", x.level, d.level);
  a.field("list", x.list, d.list);
  a.field("list_skip", x.list_skip, d.list_skip);
  a.field("kv_begin", x.kv_begin, d.kv_begin);
  a.field("kv_end", x.kv_end, d.kv_end);
  a.field("kv_pos0", x.kv_pos0, d.kv_pos0);
  a.field("kv_index0", x.kv_index0, d.kv_index0);
  a.field("kv_head", x.kv_head, d.kv_head);
  a.field("tokens", x.tokens, d.tokens);
};

template <class Archive>
void visit_case(Archive& a, Case& x) {
  const Case d;
  a.field("name", x.name, d.name);
  a.field("seed", x.seed, uint64_t(0));
  a.field("kernel", x.kernel, d.kernel);
  a.object("spec", x.spec, d.spec, visit_spec);
  a.field("q_len", x.q_len, d.q_len);
  a.field("kv_len", x.kv_len, d.kv_len);
  a.field("dense_table", x.dense_table, d.dense_table);
  a.field("index64", x.index64, d.index64);
  a.field("shuffle_pages", x.shuffle_pages, d.shuffle_pages);
  a.field("lists_per_kv_head", x.lists_per_kv_head, d.lists_per_kv_head);
  a.field("batch_keeps_pages", x.batch_keeps_pages, d.batch_keeps_pages);
  a.field("kv_position", x.kv_position, d.kv_position);
  a.field("rolling_sinks", x.rolling_sinks, d.rolling_sinks);
  a.field("rolling_jump", x.rolling_jump, d.rolling_jump);
  a.field("block_columns", x.block_columns, d.block_columns);
  a.field("layout", x.layout, d.layout);
  a.field("placement", x.placement, d.placement);
  a.field("q_view", x.q_view, d.q_view);
  a.field("o_view", x.o_view, d.o_view);
  a.field("lse_head_major", x.lse_head_major, d.lse_head_major);
  a.field("want_lse", x.want_lse, d.want_lse);
  a.field("bare_state", x.bare_state, d.bare_state);
  a.field("q_pos0", x.q_pos0, d.q_pos0);
  a.field("q_pos", x.q_pos, d.q_pos);
  a.field("prefix", x.prefix, d.prefix);
  a.field("mask", x.mask, d.mask);
  a.field("mask_percent", x.mask_percent, d.mask_percent);
  a.objects("shared", x.shared, visit_shared);
  a.objects("groups", x.groups, visit_group);
  a.field("q_gain", x.q_gain, d.q_gain);
  a.field("q_scale", x.q_scale, d.q_scale);
  a.field("k_scale", x.k_scale, d.k_scale);
  a.field("v_scale", x.v_scale, d.v_scale);
  a.field("scale_per_head", x.scale_per_head, d.scale_per_head);
  a.field("alibi_gain", x.alibi_gain, d.alibi_gain);
  a.field("capacity_slack", x.capacity_slack, d.capacity_slack);
}

}  // namespace

Case case_from_json(const Json& j) {
  const std::string name =
      j.is_object() && j.contains("name") && j["name"].is_string() ? j["name"].get<std::string>() : "a case without a name";
  Reader reader(j, name);
  Case c;
  visit_case(reader, c);
  reader.finish();
  return c;
}

Json case_to_json(const Case& c) {
  Writer writer;
  Case copy = c;
  visit_case(writer, copy);
  return writer.take();
}

std::vector<Case> read_cases(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail(ErrorCode::io, "cases: {}: got no such file, wanted a table of cases", path);
  const Json j = Json::parse(file, nullptr, false);
  require(!j.is_discarded() && j.is_object() && j.contains("cases"), "cases: {}: got no JSON object with \"cases\", wanted one", path);
  std::vector<Case> cases;
  for (const Json& one : j["cases"]) cases.push_back(case_from_json(one));
  return cases;
}

}  // namespace kvloom::check
