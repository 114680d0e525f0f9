#include "cli/replay/cpu_machine.h"

#include <chrono>
#include <cmath>
#include <cstring>

namespace kvloom::replay {
namespace {

double microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

CpuMachine::CpuMachine(const Model& model, const MachineOptions& o)
    : StepMachine(model, o), store_(model, o.kv_shape(), o.seed), q_values_(o.types.q, q_seed(o.seed), 1.0f) {
  plans_.resize(engines_.size());
}

void CpuMachine::prepare(const Batcher& batcher, const Step& step) {
  store_.apply(step.page_events);
  for (const Slice& slice : step.slices) {
    const Sequence& s = batcher.sequences()[size_t(slice.sequence)];
    store_.append(s, slice, batcher.content(s.request));
  }
  step_.lay_out(batcher, step, options_.page_size);
  const AttentionSpec& s = spec(0);
  const size_t rows = size_t(step_.num_tokens()) * size_t(s.num_qo_heads);
  q_.resize(rows * size_t(s.head_dim_qk * size_of(s.q_dtype)));
  o_.resize(rows * size_t(s.head_dim_vo * size_of(s.o_dtype)));
  lse_.resize(rows);
}

double CpuMachine::plan(int32_t kind) {
  plans_[size_t(kind)].reset();
  const auto start = std::chrono::steady_clock::now();
  plans_[size_t(kind)].emplace(engines_[size_t(kind)].plan(step_.batch()));
  return microseconds_since(start);
}

void CpuMachine::start(int32_t checked_layer, std::vector<ref::Row> rows) {
  checked_layer_ = checked_layer;
  rows_ = std::move(rows);
}

StepResult CpuMachine::finish() {
  StepResult result;
  for (int32_t layer = 0; layer < options_.layers; ++layer) {
    fill_inputs(layer);
    result.layer_us.push_back(run(layer));
    if (layer == checked_layer_) result.rows = rows_of(layer, rows_);
    result.nonfinite_outputs += nonfinite_outputs();
  }
  return result;
}

void CpuMachine::fill_inputs(int32_t layer) {
  const size_t row = size_t(model_.head_dim_qk * size_of(options_.types.q));
  char* out = q_.data();
  for (const uint64_t token : step_.tokens()) {
    const uint64_t hash = token_hash(token, q_salt(layer), false);
    for (int32_t h = 0; h < model_.qo_heads; ++h, out += row) std::memcpy(out, q_values_.row(piece_of(hash, h)), row);
  }
  std::memset(o_.data(), 0xff, o_.size());
  std::memset(lse_.data(), 0xff, lse_.size() * sizeof(float));
}

RunTensors CpuMachine::tensors(int32_t layer) const {
  const AttentionSpec& s = spec(0);
  const int64_t tokens = step_.num_tokens();
  RunTensors t;
  t.q = Tensor::dense(q_.data(), s.q_dtype, {tokens, s.num_qo_heads, s.head_dim_qk});
  t.k = store_.k(layer);
  t.v = store_.v(layer);
  t.o = Tensor::dense(o_.data(), s.o_dtype, {tokens, s.num_qo_heads, s.head_dim_vo});
  t.lse = Tensor::dense(lse_.data(), DType::f32, {tokens, s.num_qo_heads});
  t.layout = store_.layout();
  t.pages = step_.batch().pages;
  t.sink = sinks_.empty() ? nullptr : sinks_.data();
  t.scale = store_.scale();
  return t;
}

double CpuMachine::run(int32_t layer) {
  RunTensors t = tensors(layer);
  const size_t kind = size_t(kind_of(layer));
  if (options_.engine.timeline && layer == 0) {
    times_.assign(size_t(engines_[0].timeline_layout(*plans_[0]).bytes()) / 8, 0);
    t.timeline = times_.data();
  }
  const auto start = std::chrono::steady_clock::now();
  engines_[kind].run(*plans_[kind], t);
  return microseconds_since(start);
}

cli::Timeline CpuMachine::timeline(const std::string& name) const { return cli::read_timeline(name, engines_[0], *plans_[0], times_.data()); }

AttendParams CpuMachine::params(int32_t layer) const {
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
  p.pages = step_.batch().pages;
  p.variant.sm_scale = spec(kind_of(layer)).sm_scale;
  p.variant.sink = t.sink;
  p.variant.scale = t.scale;
  return p;
}

std::vector<CheckedRow> CpuMachine::rows_of(int32_t layer, const std::vector<ref::Row>& rows) const {
  const AttentionSpec& s = spec(kind_of(layer));
  std::vector<double> o(rows.size() * size_t(s.head_dim_vo)), lse(rows.size());
  ref::attend_rows(s, step_.batch(), params(layer), {rows.data(), int64_t(rows.size())}, o.data(), lse.data());
  std::vector<CheckedRow> list;
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t row = int64_t(rows[i].token) * s.num_qo_heads + rows[i].q_head;
    CheckedRow& c = list.emplace_back();
    c.token = rows[i].token;
    c.head = rows[i].q_head;
    for (int32_t d = 0; d < s.head_dim_vo; ++d) c.o.push_back(load_as_float(o_.data(), s.o_dtype, row * s.head_dim_vo + d));
    c.lse = lse_[size_t(row)];
    c.ref_o.assign(o.begin() + int64_t(i) * s.head_dim_vo, o.begin() + int64_t(i + 1) * s.head_dim_vo);
    c.ref_lse = lse[i];
  }
  return list;
}

int64_t CpuMachine::nonfinite_outputs() const {
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
