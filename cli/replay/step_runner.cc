#include "cli/replay/step_runner.h"

#include <chrono>
#include <cmath>
#include <cstring>

namespace kvloom::replay {
namespace {

double microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

Capacity capacity_of(const RunnerOptions& o) {
  Capacity c;
  c.max_requests = o.max_batch;
  c.max_query_tokens = o.token_budget;
  if (o.engine.policy == Policy::fixed_split) c.max_kv_tokens = o.max_kv_tokens;
  // Every decode named by two shared levels and its own part, and one prefill chunk on a shared prefix.
  if (o.engine.levels == LevelMode::automatic) c.max_level_rows = o.token_budget + 2 * int64_t(o.max_batch);
  return c;
}

}  // namespace

StepRunner::StepRunner(const Model& model, const RunnerOptions& options, const KvStore& store)
    : model_(model), options_(options), store_(store), q_values_(options.types.q, mix(options.seed, 0x71), 1.0f) {
  for (int32_t kind = 0; kind < std::min(model.kinds(), options.layers); ++kind) {
    engines_.emplace_back(layer_spec(model, kind, options.types, options.page_size), capacity_of(options), options.engine);
  }
  plans_.resize(engines_.size());
  Random random(mix(options.seed, 0x736e6b));
  for (int32_t h = 0; model.sinks && h < model.qo_heads; ++h) sinks_.push_back(float(random.below(4096)) / 1024.0f - 2.0f);
}

void StepRunner::prepare(const Batcher& batcher, const Step& step) {
  qo_indptr_.assign(1, 0);
  list_indptr_.assign(1, 0);
  kv_len_.clear();
  pages_.clear();
  tokens_.clear();
  for (const Slice& slice : step.slices) {
    const Sequence& s = batcher.sequences()[size_t(slice.sequence)];
    const int64_t pages = (int64_t(slice.kv_len) + options_.page_size - 1) / options_.page_size;
    pages_.insert(pages_.end(), s.pages.begin(), s.pages.begin() + pages);
    list_indptr_.push_back(int64_t(pages_.size()));
    kv_len_.push_back(slice.kv_len);
    qo_indptr_.push_back(qo_indptr_.back() + slice.q_len);
    const Content& content = batcher.content(s.request);
    for (int64_t pos = slice.kv_len - slice.q_len; pos < slice.kv_len; ++pos) tokens_.push_back(content.token(pos, s.sample));
  }
  batch_ = Batch{};
  batch_.num_requests = int32_t(kv_len_.size());
  batch_.qo_indptr = IndexView(qo_indptr_.data(), int64_t(qo_indptr_.size()));
  batch_.kv_len = IndexView(kv_len_.data(), int64_t(kv_len_.size()));
  batch_.list_indptr = IndexView(list_indptr_.data(), int64_t(list_indptr_.size()));
  batch_.pages = IndexView(pages_.data(), int64_t(pages_.size()));
  const AttentionSpec& s = spec(0);
  const size_t rows = tokens_.size() * size_t(s.num_qo_heads);
  q_.resize(rows * size_t(s.head_dim_qk * size_of(s.q_dtype)));
  o_.resize(rows * size_t(s.head_dim_vo * size_of(s.o_dtype)));
  lse_.resize(rows);
}

double StepRunner::plan(int32_t kind) {
  plans_[size_t(kind)].reset();
  const auto start = std::chrono::steady_clock::now();
  plans_[size_t(kind)].emplace(engines_[size_t(kind)].plan(batch_));
  return microseconds_since(start);
}

void StepRunner::fill_inputs(int32_t layer) {
  const size_t row = size_t(model_.head_dim_qk * size_of(options_.types.q));
  char* out = q_.data();
  for (const uint64_t token : tokens_) {
    const uint64_t hash = mix(token, 0x71 + (uint64_t(layer) << 32));
    for (int32_t h = 0; h < model_.qo_heads; ++h, out += row) std::memcpy(out, q_values_.row(mix(hash + uint64_t(h))), row);
  }
  std::memset(o_.data(), 0xff, o_.size());
  std::memset(lse_.data(), 0xff, lse_.size() * sizeof(float));
}

RunTensors StepRunner::tensors(int32_t layer) const {
  const AttentionSpec& s = spec(0);
  const int64_t tokens = int64_t(tokens_.size());
  RunTensors t;
  t.q = Tensor::dense(q_.data(), s.q_dtype, {tokens, s.num_qo_heads, s.head_dim_qk});
  t.k = store_.k(layer);
  t.v = store_.v(layer);
  t.o = Tensor::dense(o_.data(), s.o_dtype, {tokens, s.num_qo_heads, s.head_dim_vo});
  t.lse = Tensor::dense(lse_.data(), DType::f32, {tokens, s.num_qo_heads});
  t.layout = store_.layout();
  t.pages = batch_.pages;
  t.sink = sinks_.empty() ? nullptr : sinks_.data();
  t.scale = store_.scale();
  return t;
}

double StepRunner::run(int32_t layer) {
  const RunTensors t = tensors(layer);
  const size_t kind = size_t(kind_of(layer));
  const auto start = std::chrono::steady_clock::now();
  engines_[kind].run(*plans_[kind], t);
  return microseconds_since(start);
}

AttendParams StepRunner::params(int32_t layer) const {
  const RunTensors t = tensors(layer);
  const int token = t.layout == KvLayout::hnd ? 2 : 1, head = 3 - token;
  AttendParams p;
  p.q = t.q.data;
  p.q_token = t.q.stride[0];
  p.q_head = t.q.stride[1];
  p.o = t.o.data;
  p.o_token = t.o.stride[0];
  p.o_head = t.o.stride[1];
  p.kv.k = t.k.data;
  p.kv.v = t.v.data;
  p.kv.k_page = t.k.stride[0];
  p.kv.k_token = t.k.stride[token];
  p.kv.k_head = t.k.stride[head];
  p.kv.v_page = t.v.stride[0];
  p.kv.v_token = t.v.stride[token];
  p.kv.v_head = t.v.stride[head];
  p.kv.num_pages = t.k.shape[0];
  p.pages = batch_.pages;
  p.variant.sm_scale = spec(kind_of(layer)).sm_scale;
  p.variant.sink = t.sink;
  p.variant.scale = t.scale;
  return p;
}

void StepRunner::read_output(int32_t token, int32_t head, float* out) const {
  const AttentionSpec& s = spec(0);
  const int64_t first = (int64_t(token) * s.num_qo_heads + head) * s.head_dim_vo;
  for (int32_t d = 0; d < s.head_dim_vo; ++d) out[d] = load_as_float(o_.data(), s.o_dtype, first + d);
}

int64_t StepRunner::nonfinite_outputs() const {
  const AttentionSpec& s = spec(0);
  int64_t bad = 0;
  if (s.o_dtype == DType::f32) {
    const auto* o = reinterpret_cast<const uint32_t*>(o_.data());
    for (size_t i = 0; i < o_.size() / 4; ++i) bad += (o[i] & 0x7f800000u) == 0x7f800000u;
  } else {
    const uint16_t exponent = s.o_dtype == DType::bf16 ? 0x7f80 : 0x7c00;
    const auto* o = reinterpret_cast<const uint16_t*>(o_.data());
    for (size_t i = 0; i < o_.size() / 2; ++i) bad += (o[i] & exponent) == exponent;
  }
  return bad;
}

}  // namespace kvloom::replay
