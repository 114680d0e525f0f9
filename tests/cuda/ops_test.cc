// The operations around attention on a GPU: what the CPU's write (tests/api holds those to fp64), bit for bit where nothing is rotated or
// added up; in the caller's stream, captured, and refused where they can't be.
#include "kvloom/api/ops.h"
#include "kvloom/api/kvloom.h"
#include "kvloom/base/math.h"
#include "tests/cuda/engine_fixture.h"

#include <numeric>

namespace kvloom::test {
namespace {

using GpuOps = GpuEngine;

OpOptions on_gpu(void* stream = nullptr) {
  OpOptions o;
  o.backend = Backend::cuda;
  o.device = 0;
  o.stream = stream;
  return o;
}

/// An array's copy on the device.
struct OnDevice {
  explicit OnDevice(const Array& a) : buffer(0, int64_t(a.bytes.size())), t(a.t) {
    upload(a);
    t.data = buffer.data();
    t.device_type = 2;
  }
  void upload(const Array& a) { buffer.upload(a.bytes.data(), int64_t(a.bytes.size())); }
  std::vector<char> bytes() const {
    gpu_synchronize(0);
    std::vector<char> b(size_t(buffer.size()));
    buffer.download(b.data(), buffer.size());
    return b;
  }
  GpuBuffer buffer;
  Tensor t;
};

/// |got - want| within a unit in the last place of the type where something was rounded, and fp32's own arithmetic. `least`: magnitude from
/// which that counts: of what was added up, where values may cancel.
void expect_near(const std::vector<char>& got, const Array& want, const char* what, double least = 1.0 / 64) {
  const DType t = want.t.dtype;
  const double unit = t == DType::bf16   ? 1.0 / 128
                      : t == DType::f16  ? 1.0 / 1024
                      : t == DType::e4m3 ? 1.0 / 8
                      : t == DType::e5m2 ? 1.0 / 4
                                         : 4e-6;
  for (int64_t i = 0; i < want.count(); ++i) {
    const double w = want.get(i), g = load_as_float(got.data(), t, i);
    if (std::isnan(w) || std::isinf(w)) {
      ASSERT_TRUE(std::isnan(w) ? std::isnan(g) : g == w) << what << " " << i << ": got " << g << ", wanted " << w;
    } else {
      ASSERT_LE(std::fabs(g - w), unit * std::max(std::fabs(w), least)) << what << " " << i << ": got " << g << ", wanted " << w;
    }
  }
}

Array poisoned(DType dtype, std::initializer_list<int64_t> shape) {
  Array a(dtype, shape);
  std::memset(a.bytes.data(), 0x7f, a.bytes.size());
  return a;
}

struct Append {
  DType from = DType::bf16, to = DType::bf16;
  KvLayout layout = KvLayout::nhd;
  RopeSpec rope;
  ScaleParams scale;
  bool v = true;
};

void try_append(const Append& c, const std::string& what) {
  constexpr int64_t kTokens = 23, kHeads = 3, kQk = 64, kVo = 48, kPages = 9, kPageSize = 5;
  Array k_new(c.from, {kTokens, kHeads, kQk}), v_new(c.from, {kTokens, kHeads, kVo});
  k_new.normal(1, 3.0f), v_new.normal(2);
  if (!is_fp8(c.from)) k_new.set(5, 1e6f), v_new.set(70, NAN);  // saturates in fp8; stays what it is
  std::vector<int64_t> slots(kPages * kPageSize);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), std::mt19937(3));
  slots.resize(kTokens);
  slots[7] = -1;
  std::vector<int32_t> pos(kTokens);
  for (int64_t i = 0; i < kTokens; ++i) pos[size_t(i)] = int32_t(i * i * 4001);
  const auto cache = [&](int64_t dim) {
    return c.layout == KvLayout::nhd ? poisoned(c.to, {kPages, kPageSize, kHeads, dim}) : poisoned(c.to, {kPages, kHeads, kPageSize, dim});
  };
  Array k = cache(kQk), v = cache(kVo);
  const OnDevice k_in(k_new), v_in(v_new), k_out(k), v_out(v);
  AppendBatch batch;
  batch.num_tokens = kTokens;
  batch.slots = slots.data();
  batch.rope_pos = pos.data();
  append_kv(k_new, c.v ? v_new.t : Tensor(), batch, k, c.v ? v.t : Tensor(), c.layout, kPageSize, c.rope, c.scale);
  const GpuBuffer slots_there = put(slots), pos_there = put(pos);
  batch.slots = slots_there.as<int64_t>();
  batch.rope_pos = pos_there.as<int32_t>();
  GpuStream stream(0);
  append_kv(k_in.t, c.v ? v_in.t : Tensor(), batch, k_out.t, c.v ? v_out.t : Tensor(), c.layout, kPageSize, c.rope, c.scale,
            on_gpu(stream.handle()));
  if (c.rope.mode == RopeMode::none) {
    EXPECT_EQ(k_out.bytes(), k.bytes) << what;
  }
  expect_near(k_out.bytes(), k, what.c_str(), c.rope.mode == RopeMode::none ? 1.0 / 64 : 1.0);
  EXPECT_EQ(v_out.bytes(), v.bytes) << what;
}

TEST_F(GpuOps, AppendEveryTypeIntoEveryType) {
  for (const DType from : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType to : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
      Append c;
      c.from = from;
      c.to = to;
      c.layout = to == DType::f16 ? KvLayout::hnd : KvLayout::nhd;
      if (is_fp8(to)) c.scale.k = 0.37f, c.scale.v = 2.5f;
      try_append(c, std::string(name_of(from)) + " into " + name_of(to));
    }
  }
  Append as_it_is;
  as_it_is.from = as_it_is.to = DType::e4m3;
  try_append(as_it_is, "fp8 into fp8");
  Append alone;
  alone.v = false;
  try_append(alone, "K alone");
}

TEST_F(GpuOps, AppendRotates) {
  for (const RopeMode mode : {RopeMode::interleaved, RopeMode::half_split}) {
    for (const DType to : {DType::f32, DType::bf16, DType::e4m3}) {
      Append c;
      c.from = to == DType::f32 ? DType::f32 : DType::bf16;
      c.to = to;
      c.rope.mode = mode;
      c.rope.rotary_dim = mode == RopeMode::interleaved ? 0 : 32;
      c.rope.high_freq_factor = mode == RopeMode::interleaved ? 0.0f : 4.0f;
      c.rope.low_freq_factor = c.rope.high_freq_factor / 4.0f;
      c.rope.scaling = 8.0f;
      if (is_fp8(to)) c.scale.k = 0.5f;
      try_append(c, std::string("rope ") + name_of(to));
    }
  }
}

TEST_F(GpuOps, AppendWritesNothingPastTheCache) {
  Array k_new(DType::bf16, {2, 1, 64}), k = poisoned(DType::bf16, {3, 4, 1, 64});
  k_new.normal(1);
  const OnDevice in(k_new);
  Array twice = poisoned(DType::bf16, {6, 4, 1, 64});
  OnDevice out(twice);
  out.t.shape[0] = 3;  // the rest is not the cache's
  const GpuBuffer slots = put(std::vector<int64_t>{12, 2});
  AppendBatch batch;
  batch.num_tokens = 2;
  batch.slots = slots.as<int64_t>();
  append_kv(in.t, {}, batch, out.t, {}, KvLayout::nhd, 4, {}, {}, on_gpu());
  const std::vector<char> got = out.bytes();
  const size_t half = got.size() / 2;
  EXPECT_TRUE(std::equal(got.begin() + int64_t(half), got.end(), twice.bytes.begin() + int64_t(half)));
  EXPECT_EQ(std::memcmp(got.data() + 2 * 128, k_new.bytes.data() + 128, 128), 0);
}

TEST_F(GpuOps, RopeInPlace) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const RopeMode mode : {RopeMode::interleaved, RopeMode::half_split}) {
      Array x(type, {9, 5, 48});
      x.normal(4);
      const OnDevice there(x);
      RopeSpec rope;
      rope.mode = mode;
      rope.rotary_dim = 32;
      std::vector<int32_t> pos = {0, 1, 2, 57, 1000, 131071, 1 << 20, 7, 3};
      apply_rope(x, pos.data(), rope);
      const GpuBuffer pos_there = put(pos);
      apply_rope(there.t, pos_there.as<int32_t>(), rope, on_gpu());
      expect_near(there.bytes(), x, name_of(type), 1.0);
    }
  }
}

TEST_F(GpuOps, B07_B44_MergesOfEveryKind) {
  constexpr int64_t kRows = 17, kStates = 5, kHeads = 4, kDim = 80;
  const float inf = INFINITY;
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    Array o(type, {kRows, kStates, kHeads, kDim}), lse(DType::f32, {kRows, kStates, kHeads});
    o.normal(1), lse.normal(2, 4.0f);
    for (int64_t i = 0; i < lse.count(); i += 3) lse.set(i, i % 2 ? -inf : inf);  // empty states
    for (int64_t i = 0; i < kStates * kHeads; ++i) lse.set(i, -inf);              // row 0: nothing but
    for (int64_t i = 0; i < kDim; ++i) o.set(i, NAN);                             // ... whatever O holds
    const OnDevice o_there(o), lse_there(lse);
    const auto check = [&](const char* what, auto merge) {
      Array out(type, {kRows, kHeads, kDim}), out_lse(DType::f32, {kRows, kHeads});
      const OnDevice out_there(out), out_lse_there(out_lse);
      merge(o.t, lse.t, out.t, out_lse.t, OpOptions());
      merge(o_there.t, lse_there.t, out_there.t, out_lse_there.t, on_gpu());
      expect_near(out_there.bytes(), out, what);
      expect_near(out_lse_there.bytes(), out_lse, what);
    };
    check("N-way", [](const Tensor& in, const Tensor& in_lse, const Tensor& out, const Tensor& out_lse, const OpOptions& where) {
      merge_states_n(in, in_lse, out, out_lse, where);
    });
    const auto state = [](Tensor t, int64_t i) {  // state i of every row
      t.data = static_cast<char*>(t.data) + i * t.stride[1] * size_of(t.dtype);
      for (int d = 1; d + 1 < t.ndim; ++d) t.shape[d] = t.shape[d + 1], t.stride[d] = t.stride[d + 1];
      --t.ndim;
      return t;
    };
    check("two", [&](const Tensor& in, const Tensor& in_lse, const Tensor& out, const Tensor& out_lse, const OpOptions& where) {
      merge_states(state(in, 1), state(in_lse, 1), state(in, 3), state(in_lse, 3), out, out_lse, where);
    });
    const std::vector<int32_t> indptr = {0, 3, 3, 10, 11, 12, 20, 20, 21, 30, 40, 41, 50, 60, 61, 70, 80, 85};
    const GpuBuffer indptr_there = put(indptr);
    check("ragged", [&](const Tensor& in, const Tensor& in_lse, const Tensor& out, const Tensor& out_lse, const OpOptions& where) {
      const Tensor flat = Tensor::dense(in.data, in.dtype, {kRows * kStates, kHeads, kDim});
      const Tensor flat_lse = Tensor::dense(in_lse.data, DType::f32, {kRows * kStates, kHeads});
      const int32_t* p = where.backend == Backend::cpu ? indptr.data() : indptr_there.as<int32_t>();
      merge_states_ragged(flat, flat_lse, IndexView(p, kRows + 1), out, out_lse, where);
    });
  }
}

TEST_F(GpuOps, B46_EachSideHasItsOwnStrides) {
  constexpr int64_t kRows = 9, kHeads = 16, kDim = 128;
  Array wide(DType::bf16, {kRows, kHeads, 192}), a(DType::bf16, {kRows, kHeads, kDim}), b(DType::bf16, {kRows, kHeads, kDim});
  Array turned(DType::f32, {kHeads, kRows}), lse_a(DType::f32, {kRows, kHeads}), lse_b(DType::f32, {kRows, kHeads});
  a.normal(1), b.normal(2), lse_a.normal(3, 2.0f), lse_b.normal(4, 2.0f), wide.fill(NAN);
  for (int64_t i = 0; i < a.count(); ++i) wide.set(i / kDim * 192 + i % kDim, a.get(i));  // o_a = buffer[..., :128]
  for (int64_t i = 0; i < lse_a.count(); ++i) turned.set(i % kHeads * kRows + i / kHeads, lse_a.get(i));
  Array right(DType::bf16, {kRows, kHeads, kDim}), right_lse(DType::f32, {kRows, kHeads});
  merge_states(a, lse_a, b, lse_b, right, right_lse);
  const OnDevice wide_there(wide), turned_there(turned), b_there(b), lse_b_there(lse_b);
  Tensor o_a = wide_there.t, o_lse_a = turned_there.t;
  o_a.shape[2] = kDim;
  o_lse_a.shape[0] = kRows, o_lse_a.shape[1] = kHeads, o_lse_a.stride[0] = 1, o_lse_a.stride[1] = kRows;
  for (const bool first : {true, false}) {  // on either side
    Array out(DType::bf16, {kRows, kHeads, kDim}), out_lse(DType::f32, {kRows, kHeads});
    const OnDevice out_there(out), out_lse_there(out_lse);
    if (first) merge_states(o_a, o_lse_a, b_there.t, lse_b_there.t, out_there.t, out_lse_there.t, on_gpu());
    else merge_states(b_there.t, lse_b_there.t, o_a, o_lse_a, out_there.t, out_lse_there.t, on_gpu());
    expect_near(out_there.bytes(), right, first ? "first" : "second");
    expect_near(out_lse_there.bytes(), right_lse, first ? "first" : "second");
  }
}

// Two halves of every request's keys, merged, are the whole.
TEST_F(GpuOps, B42_MergedHalvesAreTheWhole) {
  Step s = make_step({{1, 640}, {1, 320}});
  Engine engine(s.spec, large(), cuda_options());
  GpuStep g(s), left(s), right(s);
  std::vector<int32_t> kv_len = {320, 160}, right_pos0 = {319, 159};
  std::vector<int64_t> starts = {s.list_indptr[0] + 20, s.list_indptr[1] + 10};
  Batch first = s.batch, second = s.batch;
  first.kv_len = second.kv_len = IndexView(kv_len.data(), 2);
  second.list_indptr = IndexView(starts.data(), 2);
  first.q_pos0 = second.q_pos0 = right_pos0.data();
  for (GpuStep* half : {&left, &right}) half->poison();
  const Plan plan_left = engine.plan(first), plan_right = engine.plan(second);
  engine.run(plan_left, left.tensors);
  engine.run(plan_right, right.tensors);
  g.poison();
  merge_states(left.tensors.o, left.tensors.lse, right.tensors.o, right.tensors.lse, g.tensors.o, g.tensors.lse, on_gpu());
  g.download(s);
  const Distance d = distance_to_ref(s);
  EXPECT_EQ(d.fault, "");
  EXPECT_LE(d.whole, 4e-3) << "both halves were rounded to bf16 before";
  EXPECT_LE(d.lse, 4e-6);
}

TEST_F(GpuOps, InAGraph) {
  load_ops(0);
  GpuStream stream(0);
  Array x(DType::f32, {4, 2, 32});
  x.normal(4);
  const OnDevice there(x);
  RopeSpec rope;
  rope.mode = RopeMode::half_split;
  const GpuBuffer pos = put(std::vector<int32_t>{1, 2, 3, 4});
  stream.begin_capture();
  apply_rope(there.t, pos.as<int32_t>(), rope, on_gpu(stream.handle()));
  stream.end_capture();
  for (int i = 0; i < 2; ++i) stream.launch();
  stream.synchronize();
  const int32_t doubled[4] = {2, 4, 6, 8};
  apply_rope(x, doubled, rope);
  expect_near(there.bytes(), x, "turned twice", 1.0);
}

TEST_F(GpuOps, RefusalsNameTheArgument) {
  Array x(DType::f32, {4, 2, 32});
  const OnDevice there(x);
  RopeSpec rope;
  rope.mode = RopeMode::half_split;
  const std::vector<int32_t> host = {1, 2, 3, 4};
  const GpuBuffer pos = put(host);
  const auto refusal = [&](auto f) { return error_of(f, ErrorCode::invalid_argument); };
  EXPECT_TRUE(has(refusal([&] { apply_rope(x, pos.as<int32_t>(), rope, on_gpu()); }), "apply_rope: x: got host memory"));
  EXPECT_TRUE(has(refusal([&] { apply_rope(there.t, host.data(), rope, on_gpu()); }), "apply_rope: pos: got host memory"));
  EXPECT_TRUE(has(refusal([&] { apply_rope(there.t, pos.as<int32_t>(), rope); }), "apply_rope: x: device_type: got 2 (CUDA)"));
  OpOptions wrong = on_gpu();
  wrong.device = 99;
  EXPECT_TRUE(has(refusal([&] { apply_rope(there.t, pos.as<int32_t>(), rope, wrong); }), "device: got 99"));
  OpOptions stream_on_cpu;
  stream_on_cpu.stream = &wrong;
  EXPECT_TRUE(has(refusal([&] { apply_rope(x, host.data(), rope, stream_on_cpu); }), "apply_rope: stream: got a stream"));
  AppendBatch batch;
  batch.num_tokens = 4;
  batch.num_requests = 1;
  batch.request = batch.pos = host.data();
  Array cache(DType::f32, {4, 1, 2, 32});
  const OnDevice pages(cache);
  EXPECT_TRUE(has(refusal([&] { append_kv(there.t, {}, batch, pages.t, {}, KvLayout::nhd, 1, {}, {}, on_gpu()); }),
                  "append_slots makes them from request, pos and pages"));
}

TEST_F(GpuOps, SlotsOfABatch) {
  AppendBatch batch;
  const std::vector<int32_t> request = {0, 0, -1, 1}, pos = {3, 4, 77, 0}, pages = {5, 2, 9};
  const std::vector<int64_t> indptr = {0, 2, 3};
  batch.num_tokens = 4;
  batch.num_requests = 2;
  batch.request = request.data();
  batch.pos = pos.data();
  batch.pages = IndexView(pages.data(), 3);
  batch.list_indptr = IndexView(indptr.data(), 3);
  std::vector<int64_t> slots(4, 99);
  append_slots(batch, 4, 10, slots.data());
  EXPECT_EQ(slots, (std::vector<int64_t>{23, 8, -1, 36}));
  const std::string text = error_of([&] { append_slots(batch, 4, 9, slots.data()); }, ErrorCode::invalid_argument);
  EXPECT_TRUE(has(text, "page id 9, wanted 0 .. 8")) << text;
}

TEST_F(GpuOps, FromC) {
  Array o(DType::f32, {2, 3, 16}), lse(DType::f32, {2, 3});
  o.normal(1), lse.normal(2);
  const OnDevice o_there(o), lse_there(lse), out(o), out_lse(lse);
  const auto c_tensor = [](const OnDevice& a) {
    kvloom_tensor t;
    kvloom_tensor_init(&t, a.t.data, int32_t(a.t.dtype), a.t.ndim, a.t.shape);
    t.device_type = 2;
    return t;
  };
  const kvloom_tensor a = c_tensor(o_there), la = c_tensor(lse_there), m = c_tensor(out), ml = c_tensor(out_lse);
  kvloom_op_options where;
  kvloom_op_options_init(&where, sizeof where);
  where.backend = KVLOOM_CUDA;
  where.device = 0;
  EXPECT_EQ(kvloom_load_ops(0), KVLOOM_OK) << kvloom_last_error();
  EXPECT_EQ(kvloom_merge_states(&a, &la, &a, &la, &m, &ml, &where), KVLOOM_OK) << kvloom_last_error();
  expect_near(out.bytes(), o, "a state merged with itself");
  EXPECT_EQ(kvloom_merge_states(&a, &la, &a, &la, &m, &ml, nullptr), KVLOOM_INVALID_ARGUMENT) << "device memory, on the CPU";

  GpuStream stream(0);  // one that waits for no other and that no other waits for
  GpuBuffer late(0, out.buffer.size());
  kvloom_tensor to = m;
  to.data = late.data();
  where.stream = stream.handle();
  late.fill(0);
  EXPECT_EQ(kvloom_merge_states(&a, &la, &a, &la, &to, &ml, &where), KVLOOM_OK) << kvloom_last_error();
  EXPECT_EQ(kvloom_wait_for_stream(0, stream.handle()), KVLOOM_OK) << kvloom_last_error();
  std::vector<char> got(size_t(late.size()));
  late.download(got.data(), late.size());
  expect_near(got, o, "a stream that was waited for");
  EXPECT_EQ(kvloom_wait_for_stream(99, nullptr), KVLOOM_INVALID_ARGUMENT);
}

// Nothing can be loaded while a stream is captured: said, with what to do.
TEST_F(CudaEngine, OpsUnderCaptureBeforeTheyAreLoaded) {
  GpuStream stream(1);
  GpuBuffer x(1, 4096), pos(1, 64);
  RopeSpec rope;
  rope.mode = RopeMode::half_split;
  OpOptions where = {Backend::cuda, 1, stream.handle(), true};  // device 1: no other test uses its operations
  const Tensor t = Tensor::dense(x.data(), DType::f32, {4, 2, 32});
  stream.begin_capture();
  const std::string text = error_of([&] { apply_rope(t, pos.as<int32_t>(), rope, where); }, ErrorCode::invalid_argument);
  stream.end_capture();
  EXPECT_TRUE(has(text, "load_ops(device)")) << text;
  load_ops(1);
  gpu.reset();
  stream.begin_capture();
  apply_rope(t, pos.as<int32_t>(), rope, where);
  stream.end_capture();
  EXPECT_EQ(gpu.count("cuLaunchKernelEx"), 1);
  EXPECT_EQ(gpu.count("cuMemAlloc") + gpu.count("cuMemHostAlloc") + gpu.count("cuModuleLoadData"), 0);
}

}  // namespace
}  // namespace kvloom::test
