#include "cli/replay/explain.h"

#include "cli/replay/step_stats.h"
#include "kvloom/base/math.h"
#include "kvloom/plan/flat.h"
#include "kvloom/support/check.h"

namespace kvloom::replay {
namespace {

/// The step's page tables: the shared prefix first, then pages of every request's own.
struct StepTables {
  std::vector<int32_t> qo_indptr{0}, kv_len, pages;
  std::vector<int64_t> list_indptr{0};
  std::vector<Slice> slices;

  StepTables(const ExplainOptions& o) {
    const int32_t shared_pages = o.shared_prefix / o.page_size;
    int32_t next = shared_pages;
    for (size_t r = 0; r < o.kv_len.size(); ++r) {
      const int32_t q_len = o.q_len.size() == 1 ? o.q_len[0] : o.q_len[r];
      slices.push_back({int32_t(r), q_len, o.kv_len[r]});
      kv_len.push_back(o.kv_len[r]);
      qo_indptr.push_back(qo_indptr.back() + q_len);
      const int32_t count = ceil_div(o.kv_len[r], o.page_size);
      for (int32_t p = 0; p < count; ++p) pages.push_back(p < shared_pages ? p : next++);
      list_indptr.push_back(int64_t(pages.size()));
    }
  }

  Batch batch() const {
    Batch b;
    b.num_requests = int32_t(kv_len.size());
    b.qo_indptr = IndexView(qo_indptr.data(), int64_t(qo_indptr.size()));
    b.kv_len = IndexView(kv_len.data(), int64_t(kv_len.size()));
    b.list_indptr = IndexView(list_indptr.data(), int64_t(list_indptr.size()));
    b.pages = IndexView(pages.data(), int64_t(pages.size()));
    return b;
  }
};

/// Work of one request or of a whole step, and how long its roofs say that it must take.
struct Work {
  int64_t packed_rows = 0;  // a KV head
  double bytes = 0.0;       // of K and V
  double flop = 0.0;

  double intensity() const { return bytes > 0 ? flop / bytes : 0.0; }
  double memory_us(const cli::Ceilings& c) const { return bytes / c.read_gbps * 1e-3; }
  double compute_us(const cli::Ceilings& c) const { return flop / c.fma_gflops * 1e-3; }
  bool has_roof(const cli::Ceilings& c) const { return c.read_gbps > 0 && c.fma_gflops > 0; }
  const char* roof(const cli::Ceilings& c) const { return memory_us(c) >= compute_us(c) ? "memory" : "compute"; }
  double roof_us(const cli::Ceilings& c) const { return max_of(memory_us(c), compute_us(c)); }
};

Work work_of(const AttentionSpec& spec, const Slice& s, int64_t token_bytes) {
  const int32_t left = spec.variant.range.left;
  Work w;
  w.packed_rows = int64_t(s.q_len) * spec.group_size();
  w.bytes = double((s.kv_len - first_kept_key(s.q_len, s.kv_len, left)) * token_bytes);
  w.flop = 2.0 * double(kept_keys(s.q_len, s.kv_len, left)) * spec.num_qo_heads * (spec.head_dim_qk + spec.head_dim_vo);
  return w;
}

std::string work_row(const std::string& name, const std::string& q_len, const std::string& kv_len, const Work& w, const cli::Ceilings& c) {
  return fmt::format("  {:>9} {:>8} {:>9} {:>11} {:>11.3f} {:>10.3f} {:>10.1f}   {}\n", name, q_len, kv_len, w.packed_rows, w.bytes * 1e-6,
                     w.flop * 1e-9, w.intensity(), w.has_roof(c) ? fmt::format("{} ({:.1f} us)", w.roof(c), w.roof_us(c)) : "-");
}

constexpr int64_t kMostPages = 1 << 28;  // of the step: a table of 1 GiB

void check(const ExplainOptions& o, const Model& model) {
  require(!o.kv_len.empty(), "--kv-len: got none, wanted the KV length of every request, as in 1000,2000");
  require(o.q_len.size() == 1 || o.q_len.size() == o.kv_len.size(), "--q-len: got {} lengths, wanted 1 or {} (one a --kv-len)",
          o.q_len.size(), o.kv_len.size());
  require(o.layer >= 0 && o.layer < model.layers, "--layer: got {}, wanted 0 to {}", o.layer, model.layers - 1);
  // As the engine does, but before page tables of that size are made.
  int64_t tokens = 0, pages = 0;
  for (size_t r = 0; r < o.kv_len.size(); ++r) {
    require(o.kv_len[r] <= plan::kMaxListTokens, "--kv-len: request {}: got {}, wanted 0 to {}", r, o.kv_len[r], plan::kMaxListTokens);
    tokens += max_of(0, o.kv_len[r]);
    pages += ceil_div(max_of(0, o.kv_len[r]), o.page_size);
  }
  require(pages <= kMostPages, "--kv-len, --page-size: got {} pages in all, wanted at most {}; give a larger --page-size", pages, kMostPages);
  require(o.max_kv_tokens == 0 || o.max_kv_tokens >= tokens, "--max-kv-tokens: got {}, wanted at least {}: what the step's requests have", o.max_kv_tokens, tokens);
  for (size_t r = 0; r < o.kv_len.size(); ++r) {
    const int32_t q_len = o.q_len.size() == 1 ? o.q_len[0] : o.q_len[r];
    require(o.kv_len[r] >= 0 && q_len >= 0, "--kv-len, --q-len: request {}: got {} and {}, wanted 0 or more", r, o.kv_len[r], q_len);
    require(q_len <= o.kv_len[r], "--q-len: request {}: got {} new tokens and a --kv-len of {}, which counts them; wanted at least as many",
            r, q_len, o.kv_len[r]);
    require(o.shared_prefix <= o.kv_len[r] - q_len, "--shared-prefix: got {}, wanted at most {}: what request {} has before its new tokens",
            o.shared_prefix, o.kv_len[r] - q_len, r);
  }
}

/// As large as the step, or larger where the user says so.
Capacity capacity_of(const StepTables& t, int64_t max_kv_tokens) {
  Capacity c;
  c.max_requests = max_of(1, int32_t(t.slices.size()));
  c.max_query_tokens = max_of<int64_t>(1, t.qo_indptr.back());
  for (const Slice& s : t.slices) c.max_kv_tokens += s.kv_len;
  c.max_kv_tokens = max_of(c.max_kv_tokens, max_kv_tokens);
  c.max_level_rows = 3 * c.max_query_tokens;
  return c;
}

std::string heading(const ExplainOptions& o, const Model& model, const AttentionSpec& spec) {
  const int32_t left = spec.variant.range.left;
  const bool changed = o.overrides.heads > 0 || o.overrides.kv_heads > 0 || o.overrides.head_dim > 0;
  const std::string dims = spec.head_dim_qk == spec.head_dim_vo ? fmt::format("{}", spec.head_dim_qk)
                                                                : fmt::format("{} (K) and {} (V)", spec.head_dim_qk, spec.head_dim_vo);
  return fmt::format("{}{}, layer {}: {} query heads, {} KV head{}, head dim {}{}\n  causal{}{}{}{}{}, q {}, KV {}, pages of {} tokens\n",
                     model.name, changed ? " with heads or dims of the command line" : "", o.layer, spec.num_qo_heads, spec.num_kv_heads,
                     spec.num_kv_heads == 1 ? "" : "s", dims, model.v_in_k ? ", V within K (MLA)" : "",
                     left < 0 ? "" : fmt::format(", a window of {} keys", left + 1),
                     spec.variant.soft_cap > 0 ? fmt::format(", soft cap {:g}", spec.variant.soft_cap) : "",
                     spec.variant.sink ? ", sinks" : "", o.custom_mask ? ", a custom mask" : "", o.rope != RopeMode::none ? ", fused RoPE" : "", name_of(spec.q_dtype),
                     name_of(spec.kv_dtype), o.page_size);
}

}  // namespace

Explanation explain_step(const ExplainOptions& o) {
  const Model model = find_model(o.model, o.overrides);
  check(o, model);
  AttentionSpec spec = layer_spec(model, o.layer % model.kinds(), o.types, o.page_size);
  spec.variant.user = o.user;
  spec.variant.rope.mode = o.rope;
  spec.variant.custom_mask = o.custom_mask;
  spec = with_user_variant(spec);
  const int64_t token_bytes = model.kv_elements() * size_of(o.types.kv);
  const StepTables tables(o);
  Engine engine(spec, capacity_of(tables, o.max_kv_tokens), o.engine);
  const Plan plan = engine.plan(tables.batch());
  const StepStats stats = step_stats(plan.view(), spec, tables.slices, token_bytes);

  Explanation out;
  out.text = heading(o, model, spec) + "\n";
  out.text += fmt::format("  {:>9} {:>8} {:>9} {:>11} {:>11} {:>10} {:>10}   {}\n", "request", "q_len", "kv_len", "packed rows", "KV MB",
                          "GFLOP", "FLOP/byte", "roof");
  nlohmann::ordered_json requests = nlohmann::ordered_json::array();
  Work total;
  for (const Slice& s : tables.slices) {
    const Work w = work_of(spec, s, token_bytes);
    total.packed_rows += w.packed_rows;
    total.flop += w.flop;
    out.text += work_row(std::to_string(s.sequence), std::to_string(s.q_len), std::to_string(s.kv_len), w, o.ceilings);
    requests.push_back({{"q_len", s.q_len},
                        {"kv_len", s.kv_len},
                        {"packed_rows", w.packed_rows},
                        {"kv_bytes", w.bytes},
                        {"flop", w.flop},
                        {"flop_per_byte", w.intensity()}});
  }
  total.bytes = double(stats.read_bytes);
  out.text += work_row("step", std::to_string(tables.qo_indptr.back()), "", total, o.ceilings);
  if (stats.levels > 1)
    out.text +=
        fmt::format("  shared prefixes are read once: {:.3f} MB instead of {:.3f} MB\n", stats.read_bytes * 1e-6, stats.flat_bytes * 1e-6);
  if (o.ceilings.read_gbps > 0)
    out.text += fmt::format(
        "  roofs measured now: {:.1f} GB/s read, {:.1f} GFLOP/s fp32; they meet at {:.1f} FLOP/byte (the ridge below is a core's alone, "
        "nominal)\n",
        o.ceilings.read_gbps, o.ceilings.fma_gflops, o.ceilings.fma_gflops / o.ceilings.read_gbps);
  else
    out.text += engine.backend() == Backend::cuda ? "  roof -: GPUs are not measured here; `roof` below says what is known of the chip\n"
                                                  : "  roof -: not measured (--no-ceilings)\n";
  out.text +=
      "  one layer; packed rows: query tokens x query heads of one KV head; KV MB: K and V read; roof: what binds, and for how long at "
      "least\n";
  out.text += "\n" + engine.explain() + "\n" + plan.explain();
  if (o.max_kv_tokens == 0 && engine.backend() == Backend::cuda)
    out.text += "\nPlanned by an engine of this step's capacity. One of more, as a server has, may take other CTAs and another launch: --max-kv-tokens N.\n";
  out.json = {{"model", model.name},
              {"layer", o.layer},
              {"kernel", engine.kernel_key()},
              {"requests", requests},
              {"step",
               {{"packed_rows", total.packed_rows},
                {"kv_bytes", stats.read_bytes},
                {"kv_bytes_flat", stats.flat_bytes},
                {"flop", total.flop},
                {"flop_per_byte", total.intensity()},
                {"roof", total.has_roof(o.ceilings) ? nlohmann::ordered_json(total.roof(o.ceilings)) : nullptr},
                {"roof_us", total.has_roof(o.ceilings) ? nlohmann::ordered_json(total.roof_us(o.ceilings)) : nullptr}}},
              {"policy", name_of(stats.policy)},
              {"levels", stats.levels},
              {"balance", stats.balance},
              {"ceiling_read_GBps", o.ceilings.read_gbps},
              {"ceiling_flops_per_s", o.ceilings.fma_gflops * 1e9},
              {"explain", engine.explain()},
              {"plan", nlohmann::ordered_json::parse(plan.json())}};
  out.svg = plan.svg();
  return out;
}

}  // namespace kvloom::replay
