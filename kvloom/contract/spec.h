// What stays fixed for the life of an engine: the shapes, types and variant that kernels are specialised for.
#pragma once

#include "kvloom/base/dtype.h"
#include "kvloom/contract/variant.h"

namespace kvloom {

/// How the KV tokens of a request are found. `ragged`: consecutive tokens from list_indptr[r]. `paged`: lists of page ids.
enum class Storage : uint8_t { ragged = 0, paged = 1 };

struct AttentionSpec {
  int32_t num_qo_heads = 0;  // query (and output) heads; a multiple of num_kv_heads
  int32_t num_kv_heads = 0;
  int32_t head_dim_qk = 0;   // 16 .. 576 on the CPU
  int32_t head_dim_vo = 0;   // may differ from head_dim_qk (MLA: 576 and 512)
  DType q_dtype = DType::f32;
  DType kv_dtype = DType::f32;
  DType o_dtype = DType::f32;  // f32, f16 or bf16
  Storage storage = Storage::paged;
  int32_t page_size = 16;      // tokens a page; ragged storage: ignored
  float sm_scale = 0.0f;       // multiplies q.k; 0 means 1 / sqrt(head_dim_qk)
  VariantSpec variant;

  /// Query heads per KV head.
  KVLOOM_HD constexpr int32_t group_size() const { return num_kv_heads > 0 ? num_qo_heads / num_kv_heads : 0; }
  constexpr bool operator==(const AttentionSpec&) const = default;
};

}  // namespace kvloom
