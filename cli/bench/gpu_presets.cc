// The tables of rows.
#include "cli/bench/gpu_shapes.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvloom::cli {
namespace {

struct Heads {
  int32_t qo = 32, kv = 8, dim = 128;
};
constexpr Heads kRowsOver16[] = {{40, 8}, {64, 8}};  // with 4 tokens a request: 20 and 32 packed rows
constexpr int32_t kRagged = 0;                       // as a page size
constexpr bool kCausal = true, kFull = false;

AttentionSpec spec_of(int32_t page_size, bool causal, Heads h = {}, DType kv = DType::bf16) {
  AttentionSpec s;
  s.num_qo_heads = h.qo;
  s.num_kv_heads = h.kv;
  s.head_dim_qk = s.head_dim_vo = h.dim;
  s.q_dtype = s.o_dtype = DType::bf16;
  s.kv_dtype = kv;
  s.storage = page_size > 0 ? Storage::paged : Storage::ragged;
  s.page_size = std::max(1, page_size);
  s.variant.range.causal = causal;
  return s;
}

/// How the lengths of a batch lie around their mean. `uniform`: evenly from half of it to one and a half; `zipf`: as 1 / rank.
enum class Spread { equal, uniform, zipf };

struct Requests {
  int32_t count, mean;
  Spread spread = Spread::equal;

  std::string name(int32_t more) const {
    const char* const kind = spread == Spread::zipf ? "zipf-" : spread == Spread::uniform ? "uniform-" : "";
    return fmt::format("{}{}x{}", kind, count, mean + more);
  }
  std::vector<int32_t> lengths(int32_t more) const {
    double harmonic = 0.0;
    for (int32_t i = 1; i <= count; ++i) harmonic += 1.0 / i;
    std::vector<int32_t> list;
    for (int32_t i = 1; i <= count; ++i) {
      int32_t length = mean;
      if (spread == Spread::zipf) length = int32_t(double(count) * mean / harmonic / i);
      if (spread == Spread::uniform) length = mean / 2 + int32_t(int64_t(mean) * (i - 1) / std::max(1, count - 1));
      list.push_back(std::max(1, length + more));
    }
    return list;
  }
};

/// "-page16-8/8-d256-e4m3-softcap": storage, and what is not the usual.
std::string tail_of(const AttentionSpec& s) {
  const VariantSpec& v = s.variant;
  std::string t = s.storage == Storage::ragged ? "-ragged" : fmt::format("-page{}", s.page_size);
  if (s.num_qo_heads != 32 || s.num_kv_heads != 8) t += fmt::format("-{}/{}", s.num_qo_heads, s.num_kv_heads);
  if (s.head_dim_qk != 128) t += fmt::format("-d{}", s.head_dim_qk);
  if (s.kv_dtype != DType::bf16) t += fmt::format("-{}", name_of(s.kv_dtype));
  if (v.range.left >= 0) t += fmt::format("-window{}", v.range.left + 1);
  if (v.alibi) t += "-alibi";
  if (v.soft_cap > 0) t += "-softcap";
  if (v.sink) t += "-sink";
  if (v.rope.mode != RopeMode::none) t += "-rope";
  if (v.custom_mask) t += "-mask";
  return t;
}

GpuShape decode(const AttentionSpec& spec, const Requests& r, int32_t more) {
  GpuShape s;
  s.name = "decode-" + r.name(more) + tail_of(spec);
  s.spec = spec;
  s.kv_len = r.lengths(more);
  s.q_len.assign(s.kv_len.size(), 1);
  s.memory_bound = true;
  return s;
}

/// Steps of speculation: `q_len` tokens a request.
GpuShape verify(const AttentionSpec& spec, int32_t q_len, const Requests& r, int32_t more) {
  GpuShape s = decode(spec, r, more);
  s.name = fmt::format("decode-q{}-{}{}", q_len, r.name(more), tail_of(spec));
  s.q_len.assign(s.kv_len.size(), q_len);
  return s;
}

GpuShape prefill(const AttentionSpec& spec, const Requests& r, int32_t more) {
  GpuShape s;
  s.name = fmt::format("prefill-{}-{}{}", spec.variant.range.causal ? "causal" : "full", r.name(more), tail_of(spec));
  s.spec = spec;
  s.q_len = s.kv_len = r.lengths(more);
  return s;
}

/// `q_len` new tokens on what is there.
GpuShape chunk(const AttentionSpec& spec, int32_t q_len, int32_t kv_len, int32_t more) {
  GpuShape s;
  s.name = fmt::format("prefill-causal-1x{}at{}{}", q_len, kv_len + more, tail_of(spec));
  s.spec = spec;
  s.q_len = {q_len};
  s.kv_len = {kv_len + more};
  return s;
}

GpuShape mixed(const AttentionSpec& spec, int32_t more) {
  const int32_t kv = 4096 + more;
  GpuShape s;
  s.name = fmt::format("mixed-4x512at{}-60x{}{}", kv, kv, tail_of(spec));
  s.spec = spec;
  s.kv_len.assign(64, kv);
  s.q_len.assign(4, 512);
  s.q_len.resize(64, 1);
  return s;
}

GpuShape shared_prefix(const AttentionSpec& spec, int32_t more) {
  constexpr int32_t kPrefix = 8192;
  GpuShape s = decode(spec, {64, kPrefix + 256}, more);
  s.shared_prefix = kPrefix;
  s.name = fmt::format("decode-shared{}-64x{}{}", kPrefix, s.kv_len[0], tail_of(spec));
  return s;
}

GpuShape mla(int32_t heads, const Requests& r, int32_t more) {
  AttentionSpec spec = spec_of(64, kCausal, {heads, 1, 576});
  spec.head_dim_vo = 512;
  GpuShape s = decode(spec, r, more);
  s.name = fmt::format("decode-mla-{}-page64-{}/1", r.name(more), heads);
  s.v_in_k = true;
  s.memory_bound = false;
  return s;
}

/// `row` run in another way, with a word for it in its name, beside the row as the engine runs it.
template <class Change>
GpuShape otherwise(GpuShape row, const char* word, Change change) {
  row.beside = row.name;
  row.name += fmt::format("-{}", word);
  change(row);
  return row;
}
void flat(GpuShape& s) { s.levels = LevelMode::off; }
void one_by_one(GpuShape& s) { s.early_launch = false; }
void fixed_split(GpuShape& s) { s.policy = Policy::fixed_split; }
void rope_apart(GpuShape& s) { s.rope_apart = true; }

/// Requests that share pages as the leaves of a tree: level d has families[d] families, to one of which request i belongs by i % families[d], and
/// whose parts[d] tokens all of its requests have; behind them `own` tokens.
struct Tree {
  int32_t count;
  std::vector<int32_t> parts, families;  // every number of families divides the next one
  int32_t own;

  std::string name() const {
    std::string s;
    for (size_t d = 0; d < parts.size(); ++d) s += fmt::format("{}{}of{}", d > 0 ? "+" : "", parts[d], families[d]);
    return s;
  }
};
GpuShape tree(const AttentionSpec& spec, const Tree& t, int32_t more) {
  int32_t kv = t.own + more;
  for (const int32_t part : t.parts) kv += part;
  GpuShape s = decode(spec, {t.count, kv - more}, more);
  s.name = fmt::format("decode-tree{}-{}x{}{}", t.name(), t.count, kv, tail_of(spec));
  s.shared_with.assign(size_t(t.count), -1);
  s.shared_tokens.assign(size_t(t.count), 0);
  for (int32_t i = 1; i < t.count; ++i) {
    int32_t tokens = 0;
    for (size_t d = 0; d < t.parts.size(); ++d) {
      const int32_t first = i % t.families[d];  // the family's first request: families lie interleaved
      if (first == i) break;
      s.shared_with[size_t(i)] = first;
      s.shared_tokens[size_t(i)] = tokens += t.parts[d];
    }
  }
  return s;
}

/// StreamingLLM: the cache of a request is a page of sinks and a rolling window of whole pages, its keys as they were before RoPE, which turns them
/// by their place in the cache.
GpuShape streaming(const AttentionSpec& spec, int32_t count, int32_t window, int32_t more) {
  GpuShape s = decode(spec, {count, spec.page_size + window}, more);
  s.name = fmt::format("decode-streaming-{}x{}+{}{}", count, spec.page_size, window + more, tail_of(spec));
  return s;
}

/// Planning of a decode step on the device.
GpuShape plan(const AttentionSpec& spec, const Requests& r, int32_t more) {
  GpuShape s = decode(spec, r, more);
  s.name = "plan-" + s.name;
  s.plan_alone = true;
  return s;
}

/// Each feature on a plain row.
template <class Change>
AttentionSpec with(AttentionSpec spec, Change change) {
  change(spec.variant);
  return spec;
}
void window(VariantSpec& v) { v.range.left = 1023; }
void alibi(VariantSpec& v) { v.alibi = true; }
void soft_cap(VariantSpec& v) { v.soft_cap = 30.0f; }
void sink(VariantSpec& v) { v.sink = true; }
void rope(VariantSpec& v) { v.rope.mode = RopeMode::half_split; }
void mask(VariantSpec& v) { v.custom_mask = true; }
constexpr void (*kFeatures[])(VariantSpec&) = {window, alibi, soft_cap, sink, rope};

std::vector<GpuShape> serving(int32_t more) {
  std::vector<GpuShape> list;
  const Requests many{128, 8192}, one{1, 16384};
  for (const int32_t page : {16, 1, 64}) list.push_back(decode(spec_of(page, kCausal), many, more));
  list.push_back(decode(spec_of(16, kCausal, {}, DType::e4m3), many, more));
  list.push_back(decode(spec_of(16, kCausal), {64, 4096, Spread::zipf}, more));
  list.push_back(decode(spec_of(16, kCausal), {16, 1024}, more));
  list.push_back(decode(spec_of(16, kCausal), {1, 32768}, more));
  for (const Heads h : kRowsOver16) list.push_back(verify(spec_of(16, kCausal, h), 4, {64, 4096}, more));
  list.push_back(shared_prefix(spec_of(16, kCausal), more));
  list.push_back(mla(128, many, more));
  for (const int32_t page : {kRagged, 64, 16, 8, 1}) list.push_back(prefill(spec_of(page, kCausal), one, more));
  list.push_back(prefill(spec_of(kRagged, kFull), one, more));
  list.push_back(prefill(spec_of(16, kCausal), {4, 4096}, more));
  list.push_back(prefill(spec_of(16, kCausal), {16, 1024}, more));
  list.push_back(prefill(spec_of(kRagged, kCausal, {32, 8, 64}), one, more));
  list.push_back(prefill(spec_of(kRagged, kCausal, {16, 8, 256}), one, more));
  list.push_back(mixed(spec_of(16, kCausal), more));
  for (const auto feature : kFeatures) {
    list.push_back(prefill(with(spec_of(kRagged, kCausal), feature), one, more));
    list.push_back(decode(with(spec_of(16, kCausal), feature), many, more));
  }
  list.push_back(prefill(spec_of(kRagged, kFull), {1, 4096}, more));
  list.push_back(prefill(with(spec_of(kRagged, kFull), mask), {1, 4096}, more));
  return list;
}

std::vector<GpuShape> paper(int32_t more) {
  std::vector<GpuShape> list;
  for (const bool decodes : {true, false}) {
    for (const Spread spread : {Spread::equal, Spread::uniform, Spread::zipf}) {
      for (const Heads h : {Heads{32, 32}, Heads{32, 8}, Heads{32, 4}}) {
        list.push_back((decodes ? decode : prefill)(spec_of(16, kCausal, h), {16, 1024, spread}, more));
      }
    }
  }
  return list;
}

std::vector<GpuShape> hopper(int32_t more) {
  std::vector<GpuShape> list;
  const Requests one{1, 16384};
  list.push_back(prefill(spec_of(kRagged, kCausal), one, more));
  list.push_back(prefill(spec_of(kRagged, kCausal), {4, 4096}, more));
  list.push_back(prefill(spec_of(kRagged, kCausal), {16, 1024}, more));
  list.push_back(prefill(spec_of(kRagged, kFull), one, more));
  list.push_back(prefill(spec_of(kRagged, kFull, {8, 8, 256}), one, more));
  list.push_back(prefill(spec_of(kRagged, kCausal, {32, 32, 64}), one, more));
  for (const int32_t page : {64, 16, 8, 1}) list.push_back(prefill(spec_of(page, kCausal), one, more));
  list.push_back(prefill(with(spec_of(kRagged, kCausal), soft_cap), one, more));
  list.push_back(prefill(with(spec_of(kRagged, kCausal), alibi), one, more));
  list.push_back(prefill(with(spec_of(kRagged, kCausal), window), {4, 4096}, more));
  list.push_back(chunk(spec_of(kRagged, kCausal, {8, 1}), 512, 131072, more));
  list.push_back(prefill(spec_of(16, kCausal), {16, 1024, Spread::zipf}, more));
  return list;
}

std::vector<GpuShape> decodes(int32_t more) {
  std::vector<GpuShape> list;
  const AttentionSpec plain = spec_of(16, kCausal);
  for (const Requests& r : {Requests{128, 8192}, Requests{64, 4096, Spread::zipf}, Requests{128, 1024}, Requests{16, 1024}, Requests{1, 32768}}) {
    list.push_back(decode(plain, r, more));
  }
  list.push_back(decode(spec_of(1, kCausal), {128, 8192}, more));
  list.push_back(decode(spec_of(16, kCausal, {32, 32}), {32, 4096}, more));
  list.push_back(decode(spec_of(16, kCausal, {}, DType::e4m3), {128, 8192}, more));
  list.push_back(verify(plain, 4, {64, 4096}, more));
  list.push_back(verify(plain, 4, {128, 8192}, more));
  for (const Heads h : kRowsOver16) list.push_back(verify(spec_of(16, kCausal, h), 4, {64, 4096}, more));
  list.push_back(mixed(plain, more));
  list.push_back(shared_prefix(plain, more));
  list.push_back(otherwise(list.back(), "flat", flat));
  for (const Requests& r : {Requests{128, 1024}, Requests{16, 1024}, Requests{1, 32768}}) {
    list.push_back(otherwise(decode(plain, r, more), "plain", one_by_one));
  }
  return list;
}

/// Every row with shared prefixes found, and flat.
std::vector<GpuShape> levels(int32_t more) {
  const AttentionSpec spec = spec_of(16, kCausal);
  std::vector<GpuShape> list;
  const auto both = [&](GpuShape s) {
    s.max_levels = 4;
    list.push_back(otherwise(s, "flat", flat));
    s.beside = list.back().name;
    list.back().beside.clear();
    s.name += "-levels";
    list.push_back(std::move(s));
  };
  both(decode(spec, {64, 2048}, more));
  both(decode(spec, {64, 4096, Spread::zipf}, more));
  both(mixed(spec, more));
  both(shared_prefix(spec, more));
  both(tree(spec, {64, {64}, {1}, 2048}, more));
  both(tree(spec, {64, {512}, {1}, 4096}, more));
  both(tree(spec, {2, {1024}, {1}, 1024}, more));
  both(tree(spec, {8, {8192}, {1}, 256}, more));
  both(tree(spec, {64, {2048, 1024, 512}, {1, 4, 16}, 512}, more));
  both(tree(spec, {64, {4096}, {8}, 1024}, more));
  return list;
}

/// Keys turned as they are read, and turned in the cache by a launch before.
std::vector<GpuShape> streamings(int32_t more) {
  const AttentionSpec spec = with(spec_of(16, kCausal), rope);
  std::vector<GpuShape> list;
  for (const int32_t count : {64, 16}) {
    for (const int32_t window : {1024, 2048, 4096}) {
      list.push_back(streaming(spec, count, window, more));
      list.push_back(otherwise(list.back(), "apart", rope_apart));
    }
  }
  return list;
}

std::vector<GpuShape> invariant(int32_t more) {
  const AttentionSpec plain = spec_of(16, kCausal);
  std::vector<GpuShape> list;
  for (const Requests& r : {Requests{128, 8192}, Requests{64, 4096, Spread::zipf}, Requests{128, 1024}, Requests{16, 1024}, Requests{1, 32768}}) {
    list.push_back(decode(plain, r, more));
    list.push_back(otherwise(list.back(), "fixed", fixed_split));
  }
  return list;
}

std::vector<GpuShape> plans(int32_t more) {
  std::vector<GpuShape> list;
  for (const int32_t count : {128, 1024}) {
    for (const Requests& r : {Requests{count, 8192}, Requests{count, 1024, Spread::uniform}, Requests{count, 4096, Spread::zipf}}) {
      list.push_back(plan(spec_of(16, kCausal), r, more));
    }
  }
  return list;
}

}  // namespace

const std::vector<GpuPreset>& gpu_presets() {
  static const std::vector<GpuPreset> list = {
      {"serving", "what serving is made of: decode, prefill, steps of both, shared prefixes, MLA, page sizes, fp8, each feature", serving},
      {"paper", "16 requests of mean length 1024, equal, uniform and Zipf, as in arXiv 2501.01005: MHA, GQA of 4 and 8, decode and prefill",
       paper},
      {"hopper", "compute-bound work: long and short causal prefill, full, head dims, page sizes, variants, long context on few heads",
       hopper},
      {"decode", "memory-bound work: few and many requests, equal and Zipf lengths, page 1, MHA, fp8, speculation, steps of both kinds, a shared prefix", decodes},
      {"levels", "shared prefixes, flat and as levels: none, short and long ones, trees", levels},
      {"streaming", "StreamingLLM: sinks and rolling windows, RoPE by place in the cache fused, and as a launch of its own", streamings},
      {"invariant", "batch-invariant decode (fixed_split) beside the balanced one", invariant},
      {"plan", "planning alone, on the device: decode steps of 128 and 1024 requests, equal, uniform and Zipf lengths", plans},
  };
  return list;
}

}  // namespace kvloom::cli
