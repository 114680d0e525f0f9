#include "cli/bench/cpu_rows.h"

#include <fmt/core.h>

namespace kvloom::cli {
namespace {

struct Heads {
  int32_t qo, kv, dim;
};

AttentionSpec spec_of(Heads h, DType dtype, DType kv_dtype, int32_t page_size, bool causal) {
  AttentionSpec s;
  s.num_qo_heads = h.qo;
  s.num_kv_heads = h.kv;
  s.head_dim_qk = s.head_dim_vo = h.dim;
  s.q_dtype = s.o_dtype = dtype;
  s.kv_dtype = kv_dtype;
  s.storage = page_size > 0 ? Storage::paged : Storage::ragged;
  s.page_size = page_size > 0 ? page_size : 1;
  s.variant.range.causal = causal;
  return s;
}

BenchShape prefill(Heads h, int32_t requests, int32_t tokens, bool causal, DType dtype, DType kv_dtype) {
  BenchShape b;
  b.spec = spec_of(h, dtype, kv_dtype, 0, causal);
  b.requests = requests;
  b.q_len = b.kv_len = tokens;
  b.name = fmt::format("prefill-{}-{}x{}-{}/{}-d{}-{}", causal ? "causal" : "full", requests, tokens, h.qo, h.kv, h.dim, name_of(kv_dtype));
  return b;
}

BenchShape decode(Heads h, int32_t requests, int32_t kv_len, int32_t q_len, DType dtype, DType kv_dtype, int32_t page_size,
                  KvLayout layout) {
  BenchShape b;
  b.spec = spec_of(h, dtype, kv_dtype, page_size, q_len > 1);
  b.layout = layout;
  b.requests = requests;
  b.q_len = q_len;
  b.kv_len = kv_len;
  b.memory_bound = true;
  b.name = fmt::format("decode-{}x{}-{}/{}-d{}-{}-page{}-{}{}", requests, kv_len, h.qo, h.kv, h.dim, name_of(kv_dtype), page_size,
                       layout == KvLayout::hnd ? "hnd" : "nhd", q_len > 1 ? fmt::format("-q{}", q_len) : "");
  return b;
}

}  // namespace

std::vector<BenchShape> cpu_bench_shapes() {
  std::vector<BenchShape> list;
  const Heads gqa{32, 8, 128}, mha{8, 8, 128};
  for (const DType t : {DType::f32, DType::bf16}) {
    for (const Heads h : {mha, gqa}) {
      for (const bool causal : {true, false}) list.push_back(prefill(h, 1, 2048, causal, t, t));
    }
  }
  list.push_back(prefill({32, 8, 64}, 1, 2048, true, DType::bf16, DType::bf16));
  list.push_back(prefill({8, 4, 256}, 1, 2048, true, DType::bf16, DType::bf16));
  list.push_back(prefill(gqa, 16, 128, true, DType::bf16, DType::bf16));
  for (const KvLayout layout : {KvLayout::hnd, KvLayout::nhd}) {
    list.push_back(decode(gqa, 64, 4096, 1, DType::f32, DType::f32, 16, layout));
    list.push_back(decode(gqa, 64, 4096, 1, DType::bf16, DType::bf16, 16, layout));
    list.push_back(decode(gqa, 64, 4096, 1, DType::f16, DType::f16, 16, layout));
    list.push_back(decode(gqa, 64, 4096, 1, DType::bf16, DType::e4m3, 16, layout));
  }
  list.push_back(decode(gqa, 64, 4096, 1, DType::bf16, DType::bf16, 1, KvLayout::nhd));
  list.push_back(decode(gqa, 64, 4096, 1, DType::bf16, DType::bf16, 64, KvLayout::hnd));
  list.push_back(decode(gqa, 1, 65536, 1, DType::bf16, DType::bf16, 16, KvLayout::hnd));
  list.push_back(decode(gqa, 64, 4096, 4, DType::bf16, DType::bf16, 16, KvLayout::hnd));
  list.push_back(decode({8, 8, 128}, 64, 4096, 1, DType::bf16, DType::bf16, 16, KvLayout::hnd));
  list.push_back(decode({28, 4, 128}, 64, 4096, 1, DType::bf16, DType::bf16, 16, KvLayout::hnd));
  BenchShape mla = decode({16, 1, 576}, 16, 4096, 1, DType::bf16, DType::bf16, 16, KvLayout::nhd);
  mla.spec.head_dim_vo = 512;
  mla.name = "decode-mla-16x4096-16/1-d576-512-bf16-page16-nhd";
  list.push_back(mla);
  return list;
}

}  // namespace kvloom::cli
