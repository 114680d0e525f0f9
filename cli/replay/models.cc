#include "cli/replay/models.h"

#include "kvloom/support/check.h"

#include <fmt/format.h>

#include <cmath>

namespace kvloom::replay {
namespace {

constexpr int32_t kMostHeads = 4096, kMostDim = 65536;  // far beyond any kernel: what is made of them does not overflow

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Model& row : model_table()) names.push_back(row.name);
  return names;
}

Model find_model(const std::string& name, const ModelOverrides& overrides) {
  for (const Model& row : model_table()) {
    if (name != row.name) continue;
    Model m = row;
    require(overrides.heads <= kMostHeads && overrides.kv_heads <= kMostHeads, "--heads, --kv-heads: got {} and {}, wanted at most {}", overrides.heads,
            overrides.kv_heads, kMostHeads);
    require(overrides.head_dim <= kMostDim, "--head-dim: got {}, wanted at most {}", overrides.head_dim, kMostDim);
    if (overrides.heads > 0) m.qo_heads = overrides.heads;
    if (overrides.kv_heads > 0) m.kv_heads = overrides.kv_heads;
    if (overrides.head_dim > 0) {
      require(!m.v_in_k, "--head-dim {}: got an MLA model ({}), whose 576 and 512 belong together; leave the option out",
              overrides.head_dim, name);
      m.head_dim_qk = m.head_dim_vo = overrides.head_dim;
      m.sm_scale = 0;
    }
    require(m.qo_heads % m.kv_heads == 0,
            "model {}: heads: got {} query heads and {} KV heads, wanted a multiple; give --heads and --kv-heads", name, m.qo_heads,
            m.kv_heads);
    return m;
  }
  fail(ErrorCode::invalid_argument, "--model: got '{}', wanted one of {}", name, fmt::join(model_names(), ", "));
}

AttentionSpec layer_spec(const Model& model, int32_t kind, const ModelTypes& types, int32_t page_size) {
  AttentionSpec spec;
  spec.num_qo_heads = model.qo_heads;
  spec.num_kv_heads = model.kv_heads;
  spec.head_dim_qk = model.head_dim_qk;
  spec.head_dim_vo = model.head_dim_vo;
  spec.q_dtype = types.q;
  spec.kv_dtype = types.kv;
  spec.o_dtype = is_fp8(types.q) ? DType::bf16 : types.q;
  spec.storage = Storage::paged;
  spec.page_size = page_size;
  spec.sm_scale = static_cast<float>(model.sm_scale > 0 ? model.sm_scale : 1.0 / std::sqrt(double(model.head_dim_qk)));
  spec.variant.range.causal = true;
  const int32_t window = model.windows[size_t(kind % model.kinds())];
  if (window > 0) spec.variant.range.left = window - 1;  // a window of N keys: the row's own and N - 1 before it
  spec.variant.soft_cap = model.soft_cap;
  spec.variant.sink = model.sinks;
  return spec;
}

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (int t = 0; t < kNumDTypes; ++t) names.push_back(name_of(static_cast<DType>(t)));
  return names;
}

DType parse_dtype(const std::string& text, const char* option) {
  for (int t = 0; t < kNumDTypes; ++t) {
    if (text == name_of(static_cast<DType>(t))) return static_cast<DType>(t);
  }
  fail(ErrorCode::invalid_argument, "{}: got '{}', wanted one of {}", option, text, fmt::join(dtype_names(), ", "));
}

}  // namespace kvloom::replay
