// Models, as far as attention sees them: heads, dims, scale, variant and window pattern. The presets are a table (model_table.cc).
#pragma once

#include "kvloom/contract/spec.h"

#include <string>
#include <vector>

namespace kvloom::replay {

/// A row of the table.
struct Model {
  const char* name;
  int32_t layers;
  int32_t qo_heads, kv_heads;  // MLA: as the absorbed form sees them
  int32_t head_dim_qk, head_dim_vo;
  double sm_scale;               // multiplies q.k; 0: 1 / sqrt(head_dim_qk)
  float soft_cap;                // 0: none
  bool sinks;                    // a learned logit a head in the softmax denominator
  bool v_in_k;                   // MLA: V is the first head_dim_vo elements of K's row, one cache for both
  std::vector<int32_t> windows;  // keys that a row of layer i keeps, its own included, by i % size; 0: all before it
  const char* source;            // where the numbers come from

  int32_t kinds() const { return int32_t(windows.size()); }
  /// Elements of one token's K and V in one layer.
  int64_t kv_elements() const { return int64_t(kv_heads) * (int64_t(head_dim_qk) + (v_in_k ? 0 : head_dim_vo)); }
};

const std::vector<Model>& model_table();
std::vector<std::string> model_names();

struct ModelOverrides {
  int32_t heads = 0, kv_heads = 0, head_dim = 0;  // 0: the preset's
};

/// Throws Error(invalid_argument) that lists the names if there is no such preset, or names the override that can't be.
Model find_model(const std::string& name, const ModelOverrides& overrides = {});

struct ModelTypes {
  DType q = DType::bf16;  // of Q and of the output (fp8 Q: the output is bf16)
  DType kv = DType::bf16;
};

/// The spec of layers of kind `kind` (layer i is of kind i % model.kinds()), paged.
AttentionSpec layer_spec(const Model& model, int32_t kind, const ModelTypes& types, int32_t page_size);

/// "f32", "bf16", ...
std::vector<std::string> dtype_names();
/// Throws Error(invalid_argument) that names the option.
DType parse_dtype(const std::string& text, const char* option);

}  // namespace kvloom::replay
