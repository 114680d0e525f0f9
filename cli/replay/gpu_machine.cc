#include "cli/replay/gpu_machine.h"

#include "cli/replay/gpu_kernels.cuh"
#include "cli/replay/values.h"
#include "kvloom/api/ops.h"
#include "kvloom/base/math.h"
#include "kvloom/support/check.h"

#include <chrono>

namespace kvloom::replay {
namespace {

GpuBuffer buffer_of(int32_t device, const void* data, int64_t bytes) {
  GpuBuffer b(device, bytes);
  b.upload(data, bytes);
  return b;
}

GpuBuffer table_of(int32_t device, DType dtype, uint64_t seed, float gain) {
  const Values values(dtype, seed, gain);
  return buffer_of(device, values.data().data(), int64_t(values.data().size()));
}

/// Copies `values` to the beginning of `buffer`, which grows if it has to.
template <class T>
void put(GpuBuffer& buffer, int32_t device, const std::vector<T>& values) {
  const int64_t bytes = int64_t(values.size() * sizeof(T));
  if (buffer.size() < bytes) buffer = GpuBuffer(device, 2 * bytes);
  buffer.upload(values.data(), bytes);
}

}  // namespace

GpuMachine::GpuMachine(const Model& model, const MachineOptions& o) : GpuMachine(model, o, gpu_memory(o.engine.device).free_bytes) {}

GpuMachine::GpuMachine(const Model& model, const MachineOptions& o, int64_t free_before)
    : StepMachine(model, o),
      device_(o.engine.device),
      free_before_(free_before),
      stream_(device_),
      program_(device_, "replay.kernels", kGpuKernels),
      pages_(model, o.kv_shape()) {
  const int64_t element = size_of(o.types.kv), heads = model.kv_heads;
  const GpuMemory memory = gpu_memory(device_);
  if (pages_.pool_bytes() > memory.free_bytes / o.pools) {
    fail(ErrorCode::out_of_memory,
         "replay: KV pool: got {} bytes free of {} on GPU {}, wanted {} for {} pages x {} pools; give a smaller --kv-pool-tokens",
         memory.free_bytes, memory.total_bytes, device_, pages_.bytes(), o.pages, o.pools);
  }
  pools_ = GpuBuffer(device_, pages_.bytes());
  const KvValues kv = kv_values(o.types.kv, o.seed);
  kv_table_ = table_of(device_, o.types.kv, kv.seed, kv.gain);
  q_table_ = table_of(device_, o.types.q, q_seed(o.seed), 1.0f);
  const AttentionSpec& s = spec(0);
  const int64_t tokens = o.token_budget, rows = tokens * s.num_qo_heads;
  q_ = GpuBuffer(device_, rows * s.head_dim_qk * size_of(s.q_dtype));
  o_ = GpuBuffer(device_, rows * s.head_dim_vo * size_of(s.o_dtype));
  lse_ = GpuBuffer(device_, rows * int64_t(sizeof(float)));
  k_new_ = GpuBuffer(device_, tokens * heads * model.head_dim_qk * element);
  if (!model.v_in_k) v_new_ = GpuBuffer(device_, tokens * heads * model.head_dim_vo * element);
  nonfinite_ = GpuBuffer(device_, 8);
  cycles_per_us_ = double(gpus()[size_t(device_)].clock_khz) * 1e-3;
  start_us_ = 100.0 * o.layers;  // until one was measured
  k_row_room_ = round_up<int64_t>(o.longest * model.head_dim_qk * element, 256);
  v_row_room_ = model.v_in_k ? 0 : round_up<int64_t>(o.longest * model.head_dim_vo * element, 256);
  k_rows_ = GpuBuffer(device_, k_row_room_ * o.check_rows);
  v_rows_ = GpuBuffer(device_, v_row_room_ * o.check_rows);
  q_rows_ = GpuBuffer(device_, int64_t(o.check_rows) * s.head_dim_qk * size_of(s.q_dtype));
  o_rows_ = GpuBuffer(device_, int64_t(o.check_rows) * s.head_dim_vo * size_of(s.o_dtype));
  lse_rows_ = GpuBuffer(device_, int64_t(o.check_rows) * int64_t(sizeof(float)));
  if (!sinks_.empty()) sinks_on_device_ = buffer_of(device_, sinks_.data(), int64_t(sinks_.size() * sizeof(float)));
  for (Slot& slot : slots_) {
    slot.tokens = GpuBuffer(device_, tokens * 8);
    slot.places = GpuBuffer(device_, tokens * 8);
    slot.plans.resize(engines_.size());
  }
}

void GpuMachine::prepare(const Batcher& batcher, const Step& step) {
  planned_ = 1 - planned_;
  Slot& slot = slots_[planned_];
  slot.step.lay_out(batcher, step, options_.page_size);
  std::vector<int64_t> places;
  for (const Slice& slice : step.slices) {
    const Sequence& s = batcher.sequences()[size_t(slice.sequence)];
    for (int64_t pos = slice.kv_len - slice.q_len; pos < slice.kv_len; ++pos) {
      places.push_back(int64_t(s.pages[size_t(pos / options_.page_size)]) * options_.page_size + pos % options_.page_size);
    }
  }
  std::vector<int32_t> events;
  for (const PageEvent& e : step.page_events) {
    events.push_back(e.from);
    events.push_back(e.page);
  }
  slot.num_events = int64_t(step.page_events.size());
  put(slot.tokens, device_, slot.step.tokens());
  put(slot.places, device_, places);
  put(slot.pages, device_, slot.step.pages());
  put(slot.events, device_, events);
}

double GpuMachine::plan(int32_t kind) {
  Slot& slot = slots_[planned_];
  slot.plans[size_t(kind)].reset();
  const auto start = std::chrono::steady_clock::now();
  slot.plans[size_t(kind)].emplace(engines_[size_t(kind)].plan(slot.step.batch()));
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

void GpuMachine::launch(const char* kernel, int64_t threads, void* argument) {
  constexpr int64_t kBlock = 256, kMostBlocks = 1024;  // the kernels stride over what is more
  const int64_t blocks = clamp_to<int64_t>(ceil_div(threads, kBlock), 1, kMostBlocks);
  program_.launch(kernel, uint32_t(blocks), uint32_t(kBlock), {argument}, stream_);
}

void GpuMachine::fill_rows(const GpuBuffer& table, DType dtype, int64_t heads, int64_t dim, uint64_t salt, bool is_v,
                           const GpuBuffer& out) {
  const Slot& slot = slots_[running_];
  FillRowsArgs a{};
  a.table = table.data();
  a.piece_bytes = kPieceStep * size_of(dtype);
  a.row_bytes = dim * size_of(dtype);
  a.tokens = slot.tokens.as<uint64_t>();
  a.num_tokens = slot.step.num_tokens();
  a.heads = heads;
  a.salt = salt;
  a.is_v = is_v;
  a.out = out.data();
  launch("fill_rows", a.num_tokens * heads * a.row_bytes / kChunk, &a);
}

/// The new tokens' K and V, made and put into their pages.
void GpuMachine::write_kv(int32_t pool) {
  const Slot& slot = slots_[running_];
  const DType type = options_.types.kv;
  const int64_t tokens = slot.step.num_tokens(), heads = model_.kv_heads;
  fill_rows(kv_table_, type, heads, model_.head_dim_qk, kv_salt(pool), false, k_new_);
  if (!model_.v_in_k) fill_rows(kv_table_, type, heads, model_.head_dim_vo, kv_salt(pool), true, v_new_);
  AppendBatch batch;
  batch.num_tokens = tokens;
  batch.slots = slot.places.as<int64_t>();
  Tensor v_new, v_pages;
  if (!model_.v_in_k) {
    v_new = Tensor::dense(v_new_.data(), type, {tokens, heads, model_.head_dim_vo});
    v_pages = v(pool);
  }
  OpOptions where;
  where.backend = Backend::cuda;
  where.device = device_;
  where.stream = stream();
  append_kv(Tensor::dense(k_new_.data(), type, {tokens, heads, model_.head_dim_qk}), v_new, batch, k(pool), v_pages, options_.layout,
            options_.page_size, {}, {}, where);
}

RunTensors GpuMachine::tensors(int32_t layer) const {
  const AttentionSpec& s = spec(0);
  const Slot& slot = slots_[running_];
  const int64_t tokens = slot.step.num_tokens();
  RunTensors t;
  t.q = Tensor::dense(q_.data(), s.q_dtype, {tokens, s.num_qo_heads, s.head_dim_qk});
  t.k = k(layer);
  t.v = v(layer);
  t.o = Tensor::dense(o_.data(), s.o_dtype, {tokens, s.num_qo_heads, s.head_dim_vo});
  t.lse = Tensor::dense(lse_.data(), DType::f32, {tokens, s.num_qo_heads});
  t.layout = options_.layout;
  t.pages = IndexView(slot.pages.as<int32_t>(), int64_t(slot.step.pages().size()));
  t.sink = sinks_.empty() ? nullptr : sinks_on_device_.as<float>();
  t.scale = kv_values(options_.types.kv, options_.seed).scale();
  return t;
}

void GpuMachine::fill_inputs(int32_t layer) {
  const AttentionSpec& s = spec(0);
  const int64_t rows = slots_[running_].step.num_tokens() * s.num_qo_heads;
  fill_rows(q_table_, s.q_dtype, s.num_qo_heads, s.head_dim_qk, q_salt(layer), false, q_);
  stream_.fill(o_.data(), 0xff, rows * s.head_dim_vo * size_of(s.o_dtype));
  stream_.fill(lse_.data(), 0xff, rows * int64_t(sizeof(float)));
}

void GpuMachine::count_nonfinite() {
  const AttentionSpec& s = spec(0);
  CountNonfiniteArgs a{};
  a.data = o_.data();
  a.elements = slots_[running_].step.num_tokens() * s.num_qo_heads * s.head_dim_vo;
  a.dtype = s.o_dtype;
  a.count = nonfinite_.as<unsigned long long>();
  launch("count_nonfinite", a.elements, &a);
}

/// Lets the stream begin with the layers when all of them are in it: a kernel that is faster than the host can launch it would be timed
/// with the host's gaps.
void GpuMachine::hold() {
  constexpr double kMargin = 1.5, kMostUs = 50e3;
  HoldArgs a{int64_t(cycles_per_us_ * std::min(kMargin * start_us_, kMostUs))};
  launch("hold", 1, &a);
}

/// Zeros for the times of the step's first layer.
void GpuMachine::clear_times() {
  const int64_t bytes = engines_[0].timeline_layout(*slots_[running_].plans[0]).bytes();
  if (times_.size() < bytes) times_ = GpuBuffer(device_, 2 * bytes);
  stream_.fill(times_.data(), 0, bytes);
}

cli::Timeline GpuMachine::timeline(const std::string& name) const {
  const Plan& plan = *slots_[running_].plans[0];
  std::vector<uint64_t> times(size_t(engines_[0].timeline_layout(plan).bytes()) / 8);
  times_.download(times.data(), int64_t(times.size() * 8));
  return cli::read_timeline(name, engines_[0], plan, times.data());
}

void GpuMachine::start(int32_t checked_layer, std::vector<ref::Row> rows) {
  const auto begin = std::chrono::steady_clock::now();
  running_ = planned_;
  Slot& slot = slots_[running_];
  stream_.forget_marks();
  marks_.clear();
  if (slot.num_events > 0) {
    PageEventsArgs a{pools_.data(),  pages_.pool_bytes(),       options_.pools, pages_.k_page(), pages_.v_page(),
                     options_.pages, slot.events.as<int32_t>(), slot.num_events};
    launch("page_events", (pages_.k_page() + pages_.v_page()) / kChunk * options_.pools, &a);
  }
  for (int32_t pool = 0; pool < options_.pools; ++pool) write_kv(pool);
  for (size_t kind = 0; kind < engines_.size(); ++kind) engines_[kind].upload(*slot.plans[kind], stream());
  stream_.fill(nonfinite_.data(), 0, nonfinite_.size());
  if (options_.engine.timeline) clear_times();
  hold();
  for (int32_t layer = 0; layer < options_.layers; ++layer) {
    fill_inputs(layer);
    const size_t kind = size_t(kind_of(layer));
    RunTensors run = tensors(layer);
    if (options_.engine.timeline && layer == 0) run.timeline = times_.data();
    const int32_t mark = stream_.mark();
    engines_[kind].run(*slot.plans[kind], run, stream());
    marks_.emplace_back(mark, stream_.mark());
    count_nonfinite();
    if (layer == checked_layer) fetch_rows(layer, rows);
  }
  start_us_ = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

/// Puts what REF needs of some rows aside, before anything writes over it.
void GpuMachine::fetch_rows(int32_t layer, const std::vector<ref::Row>& rows) {
  require(int64_t(rows.size()) <= options_.check_rows, "replay: rows to check: got {}, wanted at most {}", rows.size(),
          options_.check_rows);
  const Slot& slot = slots_[running_];
  const AttentionSpec& s = spec(kind_of(layer));
  const int64_t q_row = int64_t(s.head_dim_qk) * size_of(s.q_dtype), o_row = int64_t(s.head_dim_vo) * size_of(s.o_dtype);
  const int token = options_.layout == KvLayout::hnd ? 2 : 1, head = 3 - token, element = size_of(s.kv_dtype);
  checked_layer_ = layer;
  fetched_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    const StepBatch::Place place = slot.step.place_of(rows[i].token);
    fetched_.push_back({rows[i], place.pos});
    const auto gather = [&](const Tensor& t, char* out) {
      GatherRowsArgs a{};
      a.from = static_cast<const char*>(t.data) + rows[i].q_head / s.group_size() * t.stride[head] * element;
      a.page_bytes = t.stride[0] * element;
      a.token_bytes = t.stride[token] * element;
      a.row_bytes = t.shape[3] * element;
      a.page_ids = slot.pages.as<int32_t>() + place.list_begin;
      a.page_size = options_.page_size;
      a.num_rows = place.pos + 1;
      a.out = out;
      launch("gather_rows", a.num_rows * a.row_bytes / kChunk, &a);
    };
    gather(k(layer), k_rows_.data() + int64_t(i) * k_row_room_);
    if (!model_.v_in_k) gather(v(layer), v_rows_.data() + int64_t(i) * v_row_room_);
    const int64_t row = int64_t(rows[i].token) * s.num_qo_heads + rows[i].q_head;
    stream_.copy(q_rows_.data() + int64_t(i) * q_row, q_.data() + row * q_row, q_row);
    stream_.copy(o_rows_.data() + int64_t(i) * o_row, o_.data() + row * o_row, o_row);
    stream_.copy(lse_rows_.data() + int64_t(i) * 4, lse_.data() + row * 4, 4);
  }
}

/// Row i of those fetched, and its REF: one query token of one head over the keys up to its own.
CheckedRow GpuMachine::checked_row(size_t i) const {
  const Fetch& f = fetched_[i];
  AttentionSpec s = spec(kind_of(checked_layer_));
  const int64_t keys = f.pos + 1, element = size_of(s.kv_dtype);
  std::vector<char> q(size_t(s.head_dim_qk) * size_t(size_of(s.q_dtype))), o(size_t(s.head_dim_vo) * size_t(size_of(s.o_dtype)));
  std::vector<char> k(size_t(keys * s.head_dim_qk * element)), v(model_.v_in_k ? 0 : size_t(keys * s.head_dim_vo * element));
  CheckedRow c;
  q_rows_.download(q.data(), int64_t(q.size()), int64_t(i * q.size()));
  o_rows_.download(o.data(), int64_t(o.size()), int64_t(i * o.size()));
  lse_rows_.download(&c.lse, 4, int64_t(i) * 4);
  k_rows_.download(k.data(), int64_t(k.size()), int64_t(i) * k_row_room_);
  if (!model_.v_in_k) v_rows_.download(v.data(), int64_t(v.size()), int64_t(i) * v_row_room_);
  c.token = f.row.token;
  c.head = f.row.q_head;
  for (int32_t d = 0; d < s.head_dim_vo; ++d) c.o.push_back(load_as_float(o.data(), s.o_dtype, d));
  s.num_qo_heads = s.num_kv_heads = 1;
  s.storage = Storage::ragged;
  const int32_t qo_indptr[2] = {0, 1}, kv_len[1] = {int32_t(keys)}, q_pos0[1] = {f.pos};
  const int64_t list_indptr[2] = {0, keys};
  Batch batch;
  batch.num_requests = 1;
  batch.qo_indptr = IndexView(qo_indptr, 2);
  batch.kv_len = IndexView(kv_len, 1);
  batch.list_indptr = IndexView(list_indptr, 2);
  batch.q_pos0 = q_pos0;
  AttendParams p;
  p.q = q.data();
  p.kv.k = k.data();
  p.kv.v = model_.v_in_k ? k.data() : v.data();
  p.kv.k_page = p.kv.k_token = s.head_dim_qk;
  p.kv.v_page = p.kv.v_token = model_.v_in_k ? s.head_dim_qk : s.head_dim_vo;
  p.kv.num_pages = keys;
  p.variant.sink = sinks_.empty() ? nullptr : sinks_.data() + f.row.q_head;
  p.variant.scale = kv_values(options_.types.kv, options_.seed).scale();
  const ref::Row row{0, 0};
  c.ref_o.resize(size_t(s.head_dim_vo));
  ref::attend_rows(s, batch, p, {&row, 1}, c.ref_o.data(), &c.ref_lse);
  return c;
}

StepResult GpuMachine::finish() {
  stream_.synchronize();
  StepResult result;
  for (const auto& [begin, end] : marks_) result.layer_us.push_back(1e3 * double(stream_.milliseconds(begin, end)));
  unsigned long long bad = 0;
  nonfinite_.download(&bad, sizeof bad);
  result.nonfinite_outputs = int64_t(bad);
  for (size_t i = 0; i < fetched_.size(); ++i) result.rows.push_back(checked_row(i));
  fetched_.clear();
  return result;
}

}  // namespace kvloom::replay
