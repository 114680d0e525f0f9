#include "cli/bench/gpu_shapes.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace kvloom::cli {
namespace {

constexpr int32_t kMore[] = {0, -1, 37};

const GpuPreset* find_preset(const std::string& name) {
  for (const GpuPreset& p : gpu_presets()) {
    if (name == p.name) return &p;
  }
  return nullptr;
}

}  // namespace

SharedPart shared_part(const GpuShape& s, size_t i) {
  if (!s.shared_with.empty()) return {s.shared_with[i], s.shared_with[i] < 0 ? 0 : s.shared_tokens[i]};
  return i > 0 && s.shared_prefix > 0 ? SharedPart{0, s.shared_prefix} : SharedPart();
}

AttentionSpec run_spec(const GpuShape& s) {
  AttentionSpec spec = s.spec;
  if (s.rope_apart) spec.variant.rope = {};
  return spec;
}

double flop_of(const GpuShape& s) {
  const KeyRange& r = s.spec.variant.range;
  double pairs = 0.0;
  for (size_t i = 0; i < s.q_len.size(); ++i) {
    for (int32_t q = 0; q < s.q_len[i]; ++q) {
      const int64_t pos = int64_t(s.kv_len[i]) - s.q_len[i] + q, end = r.causal ? pos + 1 : s.kv_len[i];
      const int64_t begin = r.left >= 0 ? std::max<int64_t>(0, pos - r.left) : 0;
      pairs += double(std::max<int64_t>(0, end - begin));
    }
  }
  return 2.0 * (double(s.spec.head_dim_qk) + s.spec.head_dim_vo) * pairs * s.spec.num_qo_heads;
}

double bytes_of(const GpuShape& s) {
  const AttentionSpec& spec = s.spec;
  const int32_t left = spec.variant.range.left;
  double kv_tokens = 0.0, tokens = 0.0;
  for (size_t i = 0; i < s.q_len.size(); ++i) {
    kv_tokens += double(left >= 0 ? std::min<int64_t>(s.kv_len[i], int64_t(left) + s.q_len[i]) : s.kv_len[i]) - shared_part(s, i).tokens;
    tokens += s.q_len[i];
  }
  const double kv_dims = double(spec.head_dim_qk) + (s.v_in_k ? 0 : spec.head_dim_vo);
  return kv_tokens * spec.num_kv_heads * kv_dims * size_of(spec.kv_dtype) +
         tokens * spec.num_qo_heads * (double(spec.head_dim_qk) * size_of(spec.q_dtype) + double(spec.head_dim_vo) * size_of(spec.o_dtype));
}

std::vector<float> alibi_slopes(int32_t heads) {
  std::vector<float> slopes;
  for (int32_t h = 0; h < heads; ++h) slopes.push_back(std::exp2(-8.0f * float(h + 1) / float(heads)));
  return slopes;
}

nlohmann::ordered_json to_json(const GpuShape& s) {
  const AttentionSpec& spec = s.spec;
  const VariantSpec& v = spec.variant;
  nlohmann::ordered_json j{{"shape", s.name},
          {"more_tokens", s.more},
          {"q_len", s.q_len},
          {"kv_len", s.kv_len},
          {"qo_heads", spec.num_qo_heads},
          {"kv_heads", spec.num_kv_heads},
          {"head_dim_qk", spec.head_dim_qk},
          {"head_dim_vo", spec.head_dim_vo},
          {"q_dtype", name_of(spec.q_dtype)},
          {"kv_dtype", name_of(spec.kv_dtype)},
          {"page_size", spec.storage == Storage::paged ? spec.page_size : 0},
          {"causal", v.range.causal},
          {"left", v.range.left},
          {"soft_cap", v.soft_cap},
          {"alibi", v.alibi},
          {"sink", v.sink},
          {"custom_mask", v.custom_mask},
          {"rope", v.rope.mode != RopeMode::none},
          {"shared_prefix", s.shared_prefix},
          {"v_in_k", s.v_in_k},
          {"bound", s.memory_bound ? "memory" : "compute"},
          {"flop", flop_of(s)},
          {"bytes", bytes_of(s)}};
  if (!s.shared_with.empty()) j["shared_with"] = s.shared_with, j["shared_tokens"] = s.shared_tokens;
  if (!s.beside.empty()) j["beside"] = s.beside;
  return j;
}

std::vector<std::string> gpu_preset_names() {
  std::vector<std::string> names;
  for (const GpuPreset& p : gpu_presets()) names.push_back(p.name);
  return names;
}

std::vector<GpuShape> gpu_bench_shapes(const std::vector<std::string>& presets, bool odd_lengths) {
  std::vector<GpuShape> list;
  std::set<std::string> seen;
  for (const std::string& name : presets) {
    const GpuPreset* const preset = find_preset(name);
    if (preset == nullptr) continue;
    std::vector<GpuShape> rows[std::size(kMore)];
    const size_t lengths = odd_lengths ? std::size(kMore) : 1;
    for (size_t m = 0; m < lengths; ++m) rows[m] = preset->rows(kMore[m]);
    for (size_t i = 0; i < rows[0].size(); ++i) {
      for (size_t m = 0; m < lengths; ++m) {
        rows[m][i].more = kMore[m];
        if (seen.insert(rows[m][i].name).second) list.push_back(std::move(rows[m][i]));
      }
    }
  }
  return list;
}

}  // namespace kvloom::cli
