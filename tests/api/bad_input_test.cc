// One row a bad input: what is changed about a step that works, and what the refusal must say. After it the outputs are untouched and the
// engine works on.
#include "tests/support/step.h"

#include <gtest/gtest.h>

#include <functional>

namespace kvloom::test {
namespace {

/// A step, and all that its engine is made from.
struct Bench {
  Step step;
  Capacity capacity;
  EngineOptions options;
  Workspace workspace;
  std::vector<int32_t> extra;  // memory for arrays that a row makes up

  Bench() {
    step.spec = small_spec();
    step.requests = {{3, 40}, {1, 17}, {2, 2}};
    step.make();
    capacity = step.capacity();
    options.threads = 1;
  }
};

struct BadInput {
  const char* name;
  ErrorCode code;
  const char* says;  // must be part of the message
  std::function<void(Bench&)> spoil;
};

void PrintTo(const BadInput& bad, std::ostream* out) { *out << bad.name; }

constexpr ErrorCode kInvalid = ErrorCode::invalid_argument, kCapacity = ErrorCode::over_capacity, kUnsupported = ErrorCode::unsupported,
                    kMismatch = ErrorCode::mismatch;
const float kNaN = std::nanf("");

/// Refused when the engine is made.
const BadInput kBadEngines[] = {
    {"ZeroKvHeads", kInvalid, "num_kv_heads: got 0, wanted 1", [](Bench& s) { s.step.spec.num_kv_heads = 0; }},
    {"NegativeHeads", kInvalid, "num_qo_heads: got -4, wanted 1", [](Bench& s) { s.step.spec.num_qo_heads = -4; }},
    {"GroupDoesNotDivide", kInvalid, "num_qo_heads: got 5 over 2 KV heads, wanted a multiple",
     [](Bench& s) { s.step.spec.num_qo_heads = 5; }},
    {"B57_HeadDimZero", kInvalid, "head_dim_qk: got 0, wanted at least 1", [](Bench& s) { s.step.spec.head_dim_qk = 0; }},
    {"B57_HeadDimNegative", kInvalid, "head_dim_vo: got -64, wanted at least 1", [](Bench& s) { s.step.spec.head_dim_vo = -64; }},
    {"HeadDimTooLarge", kUnsupported, "head dim 640 is above 576", [](Bench& s) { s.step.spec.head_dim_qk = 640; }},
    {"HeadDimTooSmall", kUnsupported, "head dim 8 is below 16 (pad with zeros", [](Bench& s) { s.step.spec.head_dim_vo = 8; }},
    {"PageSizeZero", kInvalid, "page_size: got 0, wanted 1", [](Bench& s) { s.step.spec.page_size = 0; }},
    {"UnknownDtype", kInvalid, "q_dtype: got 9, wanted f32 (0), f16 (1), bf16 (2), e4m3 (3) or e5m2 (4)",
     [](Bench& s) { s.step.spec.q_dtype = DType(9); }},
    {"UnknownKvDtype", kInvalid, "kv_dtype: got 77", [](Bench& s) { s.step.spec.kv_dtype = DType(77); }},
    {"Fp8Output", kInvalid, "o_dtype: got e4m3, wanted f32, f16 or bf16", [](Bench& s) { s.step.spec.o_dtype = DType::e4m3; }},
    {"UnknownStorage", kInvalid, "storage: got 3", [](Bench& s) { s.step.spec.storage = Storage(3); }},
    {"ScaleNaN", kInvalid, "sm_scale: got nan", [](Bench& s) { s.step.spec.sm_scale = kNaN; }},
    {"ScaleNegative", kInvalid, "sm_scale: got -1", [](Bench& s) { s.step.spec.sm_scale = -1.0f; }},
    {"WindowBelowMinusOne", kInvalid, "range.left: got -2, wanted -1 (no window)", [](Bench& s) { s.step.spec.variant.range.left = -2; }},
    {"SoftCapNegative", kInvalid, "soft_cap: got -30", [](Bench& s) { s.step.spec.variant.soft_cap = -30.0f; }},
    {"SoftCapNaN", kInvalid, "soft_cap: got nan", [](Bench& s) { s.step.spec.variant.soft_cap = kNaN; }},
    {"SumWithSink", kInvalid, "sink: got true with reduction sum",
     [](Bench& s) { s.step.spec.variant.sink = true, s.step.spec.variant.reduction = Reduction::sum; }},
    {"UnknownReduction", kInvalid, "reduction: got 7", [](Bench& s) { s.step.spec.variant.reduction = Reduction(7); }},
    {"BiasWithSoftmax", kInvalid, "sigmoid_bias: got 1 with reduction softmax", [](Bench& s) { s.step.spec.variant.sigmoid_bias = 1.0f; }},
    {"RotaryDimOdd", kInvalid, "rotary_dim: got 7, wanted an even number 2 .. 64",
     [](Bench& s) {
       s.step.spec.variant.rope = {RopeMode::interleaved, 7};
     }},
    {"RotaryDimTooLarge", kInvalid, "rotary_dim: got 66",
     [](Bench& s) {
       s.step.spec.variant.rope = {RopeMode::half_split, 66};
     }},
    {"RotaryDimWithoutMode", kInvalid, "set rope.mode", [](Bench& s) { s.step.spec.variant.rope.rotary_dim = 8; }},
    {"RopeThetaZero", kInvalid, "rope.theta: got 0",
     [](Bench& s) {
       s.step.spec.variant.rope = {RopeMode::half_split, 0, 0.0f};
     }},
    {"RopeModeUnknown", kInvalid, "rope.mode: got 9", [](Bench& s) { s.step.spec.variant.rope.mode = RopeMode(9); }},
    {"RopeFactorsSwapped", kInvalid, "low_freq_factor: got 4, wanted less than high_freq_factor 1",
     [](Bench& s) { s.step.spec.variant.rope = {RopeMode::half_split, 0, 1e4f, 8.0f, 4.0f, 1.0f, 8192.0f}; }},
    {"CapacityNegative", kInvalid, "max_requests: got -1", [](Bench& s) { s.capacity.max_requests = -1; }},
    {"CapacityPastInt32Rows", kInvalid, "max_query_tokens: got 1099511627776, wanted 0 ..",
     [](Bench& s) { s.capacity.max_query_tokens = int64_t(1) << 40; }},
    {"UnknownBackend", kInvalid, "backend: got 4", [](Bench& s) { s.options.backend = Backend(4); }},
    {"NegativeThreads", kInvalid, "threads: got -1", [](Bench& s) { s.options.threads = -1; }},
    {"NegativeCtas", kInvalid, "num_ctas: got -7", [](Bench& s) { s.options.num_ctas = -7; }},
    {"UnknownPolicy", kInvalid, "policy: got 42", [](Bench& s) { s.options.policy = Policy(42); }},
    {"UnknownLevels", kInvalid, "levels: got 2", [](Bench& s) { s.options.levels = LevelMode(2); }},
    {"SplitNotATile", kInvalid, "split_tokens: got 100, wanted a multiple of", [](Bench& s) { s.options.split_tokens = 100; }},
    {"UnknownTarget", kInvalid, "cpu_target: got \"sse9\", wanted one of portable, avx2, avx512",
     [](Bench& s) { s.options.cpu_target = "sse9"; }},
    {"UnknownKernel", kInvalid, "options.kernel: got \"sm95\", wanted one of sm90, sm80, cpu-avx512, cpu-avx2, cpu-portable; leave it out",
     [](Bench& s) { s.options.kernel = "sm95"; }},
    {"WorkspaceWithoutMemory", kInvalid, "workspace.data: got a null pointer with 4096 bytes",
     [](Bench& s) {
       s.workspace = {nullptr, 4096};
     }},
    {"WorkspaceMisaligned", kInvalid, "workspace.data: got an address that is not a multiple of 64",
     [](Bench& s) {
       static std::vector<char> memory(1 << 26);
       s.workspace = {memory.data() + (reinterpret_cast<uintptr_t>(memory.data()) % 64 == 0 ? 4 : 0), int64_t(memory.size()) - 4};
     }},
};

/// Refused when the step is planned.
const BadInput kBadBatches[] = {
    {"IndptrFalls", kInvalid, "qo_indptr", [](Bench& s) { s.step.qo_indptr[1] = 5; }},
    {"IndptrNotFromZero", kInvalid, "qo_indptr", [](Bench& s) { s.step.qo_indptr[0] = 1; }},
    {"IndptrNotGiven", kInvalid, "qo_indptr", [](Bench& s) { s.step.batch.qo_indptr = {}; }},
    {"KvLenNegative", kInvalid, "kv_len", [](Bench& s) { s.step.kv_len[2] = -1; }},
    {"KvLenTooShort", kInvalid, "kv_len", [](Bench& s) { s.step.batch.kv_len.size = 2; }},
    {"NegativeRequests", kInvalid, "num_requests", [](Bench& s) { s.step.batch.num_requests = -3; }},
    {"ListPastPages", kInvalid, "pages", [](Bench& s) { s.step.kv_len[2] = 500, s.capacity.max_kv_tokens = 1000; }},
    {"PagesNotGiven", kInvalid, "pages", [](Bench& s) { s.step.batch.pages = {}; }},
    {"PageIdNegative", kInvalid, "plan: pages[4]: page id: got -5", [](Bench& s) { s.step.pages[4] = -5; }},
    {"TableTooNarrow", kInvalid, "table_stride", [](Bench& s) { s.step.batch.list_indptr = {}, s.step.batch.table_stride = 1; }},
    {"TooManyRequests", kCapacity, "requests", [](Bench& s) { s.capacity.max_requests = 2; }},
    {"TooManyTokens", kCapacity, "query tokens: got 6", [](Bench& s) { s.capacity.max_query_tokens = 5; }},
};

/// Refused when the step runs.
const BadInput kBadRuns[] = {
    {"B63_QueryRowsFewer", kInvalid, "q: shape: got [5, 4, 64], wanted [6, 4, 64]", [](Bench& s) { s.step.tensors.q.shape[0] = 5; }},
    {"B63_QueryRowsMore", kInvalid, "q: shape: got [7, 4, 64], wanted [6, 4, 64]", [](Bench& s) { s.step.tensors.q.shape[0] = 7; }},
    {"QueryMissing", kInvalid, "q: got no tensor, wanted [tokens, num_qo_heads, head_dim_qk]", [](Bench& s) { s.step.tensors.q = {}; }},
    {"QueryRank", kInvalid, "q: rank: got 2 dimensions, wanted 3", [](Bench& s) { s.step.tensors.q.ndim = 2; }},
    {"QueryRankAbsurd", kInvalid, "q: rank: got -7 dimensions, wanted 3", [](Bench& s) { s.step.tensors.q.ndim = -7; }},
    {"QueryHeads", kInvalid, "q: shape: got [6, 2, 64], wanted [6, 4, 64]", [](Bench& s) { s.step.tensors.q.shape[1] = 2; }},
    {"QueryShapeNegative", kInvalid, "q: shape: got [6, 4, -64]", [](Bench& s) { s.step.tensors.q.shape[2] = -64; }},
    {"CacheRank", kInvalid, "k: rank: got 3 dimensions, wanted 4 [pages, page_size, num_kv_heads, dim] (paged, nhd)",
     [](Bench& s) { s.step.tensors.k.ndim = 3; }},
    {"B65_QueryDtype", kInvalid, "q: dtype: got bf16, wanted f32 as spec.q_dtype says",
     [](Bench& s) { s.step.tensors.q.dtype = DType::bf16; }},
    {"B65_CacheDtype", kInvalid, "k: dtype: got e4m3, wanted f32 as spec.kv_dtype says",
     [](Bench& s) { s.step.tensors.k.dtype = DType::e4m3; }},
    {"DtypeUnknown", kInvalid, "v: dtype: got an unknown value, wanted f32", [](Bench& s) { s.step.tensors.v.dtype = DType(200); }},
    {"OutputDtype", kInvalid, "o: dtype: got f16, wanted f32 as spec.o_dtype says", [](Bench& s) { s.step.tensors.o.dtype = DType::f16; }},
    {"QueryNull", kInvalid, "q: data: got a null pointer", [](Bench& s) { s.step.tensors.q.data = nullptr; }},
    {"OutputNull", kInvalid, "o: data: got a null pointer", [](Bench& s) { s.step.tensors.o.data = nullptr; }},
    {"ValuesNull", kInvalid, "v: data: got a null pointer", [](Bench& s) { s.step.tensors.v.data = nullptr; }},
    {"QueryMisaligned", kInvalid, "q: data: got an address that is not a multiple of 4",
     [](Bench& s) { s.step.tensors.q.data = static_cast<char*>(s.step.tensors.q.data) + 1; }},
    {"B60_LastDimStrided", kInvalid, "k: stride: got 2 along the last dimension, wanted 1",
     [](Bench& s) { s.step.tensors.k.stride[3] = 2; }},
    {"StrideAbsurd", kInvalid, "v: stride: got", [](Bench& s) { s.step.tensors.v.stride[0] = INT64_MAX / 2; }},
    {"OutputRowsOverlap", kInvalid, "o: stride: got [0, 64, 1]", [](Bench& s) { s.step.tensors.o.stride[0] = 0; }},
    {"LseRowsOverlap", kInvalid, "lse: stride: got", [](Bench& s) { s.step.tensors.lse.stride[0] = 2; }},
    {"LseShape", kInvalid, "lse: shape: got [6, 8], wanted [6, 4]", [](Bench& s) { s.step.tensors.lse.shape[1] = 8; }},
    {"LseDtype", kInvalid, "lse: dtype: got bf16, wanted f32", [](Bench& s) { s.step.tensors.lse.dtype = DType::bf16; }},
    {"B49_LseRank", kInvalid, "lse: rank: got 3 dimensions, wanted 2", [](Bench& s) { s.step.tensors.lse.ndim = 3; }},
    {"PageSizeOfCache", kInvalid, "k: shape: got [9, 8, 2, 64], wanted [any, 16, 2, 64]", [](Bench& s) { s.step.tensors.k.shape[1] = 8; }},
    {"LayoutUnknown", kInvalid, "layout: got 5", [](Bench& s) { s.step.tensors.layout = KvLayout(5); }},
    {"LayoutWrong", kInvalid, "k: shape: got [9, 16, 2, 64], wanted [any, 2, 16, 64]",
     [](Bench& s) { s.step.tensors.layout = KvLayout::hnd; }},
    {"PageIdPastTheCache", kInvalid, "page id: got ", [](Bench& s) { s.step.tensors.k.shape[0] = s.step.tensors.v.shape[0] = 3; }},
    {"NoPagesAtAll", kInvalid, "page id: got ", [](Bench& s) { s.step.tensors.k.shape[0] = s.step.tensors.v.shape[0] = 0; }},
    {"OtherPagesTooFew", kInvalid, "pages: got 2 entries, wanted at least 6",
     [](Bench& s) { s.step.tensors.pages = IndexView(s.step.pages.data(), 2); }},
    {"OtherPagesOutOfRange", kInvalid, "page id: got 1000000",
     [](Bench& s) { s.extra.assign(6, 1000000), s.step.tensors.pages = IndexView(s.extra.data(), 6); }},
    {"OtherPagesNegative", kInvalid, "page id: got -1",
     [](Bench& s) { s.extra = {0, 1, -1, 2, 3, 4}, s.step.tensors.pages = IndexView(s.extra.data(), 6); }},
    {"OutputIsQuery", kInvalid, "o: got memory that overlaps q", [](Bench& s) { s.step.tensors.o.data = s.step.tensors.q.data; }},
    {"OutputInCache", kInvalid, "o: got memory that overlaps v",
     [](Bench& s) { s.step.tensors.o.data = static_cast<float*>(s.step.tensors.v.data) + 128; }},
    {"LseInOutput", kInvalid, "lse: got memory that overlaps o", [](Bench& s) { s.step.tensors.lse.data = s.step.tensors.o.data; }},
    {"B82_ScaleWithout fp8", kInvalid, "scale.k: got 2 with f32, wanted 1", [](Bench& s) { s.step.tensors.scale.k = 2.0f; }},
    {"B82_QueryScaleWithout fp8", kInvalid, "scale.q: got 0.5 with f32", [](Bench& s) { s.step.tensors.scale.q = 0.5f; }},
    {"ScaleNaN", kInvalid, "scale.v: got nan", [](Bench& s) { s.step.tensors.scale.v = kNaN; }},
    {"HeadScalesWithout fp8", kInvalid, "scale.v_per_head: got an array with f32",
     [](Bench& s) { s.step.tensors.scale.v_per_head = s.step.slopes.data(); }},
    {"SlopesNotWanted", kInvalid, "alibi_slopes: got an array, wanted none",
     [](Bench& s) { s.step.tensors.alibi_slopes = s.step.slopes.data(); }},
    {"SinkNotWanted", kInvalid, "sink: got an array, wanted none", [](Bench& s) { s.step.tensors.sink = s.step.sinks.data(); }},
    {"MaskNotWanted", kInvalid, "mask: got an array, wanted none", [](Bench& s) { s.step.tensors.mask = s.step.mask.data(); }},
    {"TimelineNotWanted", kInvalid, "timeline: got memory, wanted a null pointer; this engine's runs take no times",
     [](Bench& s) { s.step.tensors.timeline = s.step.kv_len.data(); }},
    {"PositionsNotWanted", kInvalid, "page_pos: got an array, wanted none",
     [](Bench& s) { s.step.tensors.page_pos = s.step.kv_len.data(); }},
};

std::string name_of_row(const BadInput& bad) {
  std::string name;
  for (const char* c = bad.name; *c; ++c) name += *c == ' ' ? '_' : *c;
  return name;
}

template <class F>
void expect_refused(const BadInput& bad, F&& f) {
  try {
    f();
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(int(e.code()), int(bad.code)) << e.what();
    EXPECT_NE(std::string(e.what()).find(bad.says), std::string::npos) << "said: " << e.what() << "\nwanted: " << bad.says;
    EXPECT_NE(std::string(e.what()).find(": "), std::string::npos);
  }
}

class BadEngine : public testing::TestWithParam<BadInput> {};
TEST_P(BadEngine, IsRefused) {
  Bench s;
  GetParam().spoil(s);
  expect_refused(GetParam(), [&] { Engine(s.step.spec, s.capacity, s.options, s.workspace); });
  if (s.workspace.bytes == 0) {
    expect_refused(GetParam(), [&] { Engine::workspace_size(s.step.spec, s.capacity, s.options); });
  }
}
INSTANTIATE_TEST_SUITE_P(All, BadEngine, testing::ValuesIn(kBadEngines), [](const auto& info) { return name_of_row(info.param); });

class BadBatch : public testing::TestWithParam<BadInput> {};
TEST_P(BadBatch, IsRefused) {
  Bench s;
  GetParam().spoil(s);
  Engine engine(s.step.spec, s.capacity, s.options);
  expect_refused(GetParam(), [&] { engine.plan(s.step.batch); });
  Step small;  // the engine still works
  small.spec = s.step.spec;
  small.requests = {{2, 20}};
  small.make();
  engine.run(engine.plan(small.batch), small.tensors);
  expect_right(small);
}
INSTANTIATE_TEST_SUITE_P(All, BadBatch, testing::ValuesIn(kBadBatches), [](const auto& info) { return name_of_row(info.param); });

class BadRun : public testing::TestWithParam<BadInput> {};
TEST_P(BadRun, IsRefused) {
  Bench s;
  const RunTensors good = s.step.tensors;
  Engine engine(s.step.spec, s.capacity, s.options);
  const Plan plan = engine.plan(s.step.batch);
  GetParam().spoil(s);
  const std::vector<char> before = s.step.o.bytes, before_q = s.step.q.bytes;
  expect_refused(GetParam(), [&] { engine.run(plan, s.step.tensors); });
  EXPECT_EQ(std::memcmp(before.data(), s.step.o.bytes.data(), before.size()), 0) << "written after an error";
  EXPECT_EQ(before_q, s.step.q.bytes);
  s.step.tensors = good;
  engine.run(plan, s.step.tensors);
  expect_right(s.step);
}
INSTANTIATE_TEST_SUITE_P(All, BadRun, testing::ValuesIn(kBadRuns), [](const auto& info) { return name_of_row(info.param); });

TEST(BadSpec, KernelsOfTheBackendThatWasAskedForComeFirst) {
  Bench s;
  s.step.spec.head_dim_qk = 8;
  try {
    Engine engine(s.step.spec, s.capacity, s.options);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_EQ(text.find("\n  attend.cpu-"), text.find('\n')) << text;
    EXPECT_NE(text.find("head dim 8 is below 16"), std::string::npos) << text;
    EXPECT_GT(text.find("sm80"), text.find("cpu-portable")) << text;
  }
}

/// Features whose arrays are missing, or too short.
TEST(BadRun, WhatAVariantNeedsMustBeThere) {
  const auto refused = [](const std::function<void(AttentionSpec&)>& want, const std::function<void(Step&)>& spoil, const char* says) {
    Step s;
    s.spec = small_spec();
    want(s.spec);
    s.requests = {{10, 20}, {3, 7}};
    s.make();
    spoil(s);
    Engine engine(s.spec, s.capacity());
    const Plan plan = engine.plan(s.batch);
    expect_refused({"", kInvalid, says, {}}, [&] { engine.run(plan, s.tensors); });
  };
  refused([](AttentionSpec& s) { s.variant.alibi = true; }, [](Step& s) { s.tensors.alibi_slopes = nullptr; },
          "alibi_slopes: got none, wanted an array");
  refused([](AttentionSpec& s) { s.variant.sink = true; }, [](Step& s) { s.tensors.sink = nullptr; }, "sink: got none, wanted an array");
  const auto mask = [](AttentionSpec& s) { s.variant.custom_mask = true; };
  refused(
      mask, [](Step& s) { s.tensors.mask = nullptr; }, "mask: got none, wanted an array");
  refused(
      mask, [](Step& s) { s.tensors.mask_indptr = nullptr; }, "mask_indptr: got none, wanted an array");
  // B32: 10 x 20 bits are 25 bytes.
  refused(
      mask, [](Step& s) { s.mask_indptr[1] = 24; }, "request 0: got 24 bytes of mask at 0, wanted 25 bytes for 10 query tokens x 20 keys");
  refused(
      mask, [](Step& s) { s.mask_indptr[2] = 26; }, "request 1: got 1 bytes of mask at 25, wanted 3 bytes");
  refused([](AttentionSpec& s) { s.variant.reduction = Reduction::sum; }, [](Step& s) { s.tensors.lse = s.lse; },
          "lse: got a tensor with reduction sum");
  refused([](AttentionSpec&) {}, [](Step& s) { s.batch.kv_position = KvPosition::page_table; }, "page_pos: got none, wanted an array");
  refused([](AttentionSpec& s) { s.storage = Storage::ragged; }, [](Step& s) { s.tensors.k.shape[0] = 20; },
          "k, v: got 20 tokens, wanted at least 27");
  refused([](AttentionSpec& s) { s.storage = Storage::ragged; }, [](Step& s) { s.tensors.pages = IndexView(s.kv_len.data(), 2); },
          "pages: got page ids with ragged storage");
  refused([](AttentionSpec& s) { s.kv_dtype = DType::e4m3; }, [](Step& s) { s.tensors.scale.k = 0.0f; }, "scale.k: got 0");
  refused([](AttentionSpec& s) { s.kv_dtype = DType::e4m3; },
          [](Step& s) {
            s.slopes = {1.0f, -2.0f}, s.tensors.scale.k_per_head = s.slopes.data();
          },
          "scale.k_per_head[1]: got -2");
}

TEST(BadRun, APlanOfAnotherEngineOrAMovedOne) {
  Bench s;
  Engine a(s.step.spec, s.capacity), b(s.step.spec, s.capacity);
  Plan plan = a.plan(s.step.batch);
  expect_refused({"", kMismatch, "plan: got one of another engine", {}}, [&] { b.run(plan, s.step.tensors); });
  int stream = 0;
  expect_refused({"", kInvalid, "stream: got a stream, wanted a null pointer", {}}, [&] { a.run(plan, s.step.tensors, &stream); });
  const Plan taken = std::move(plan);
  expect_refused({"", kInvalid, "moved from", {}}, [&] { a.run(plan, s.step.tensors); });
  expect_refused({"", kInvalid, "moved from", {}}, [&] { (void)plan.graph_key(); });
  const Engine moved = std::move(b);
  expect_refused({"", kInvalid, "moved from", {}}, [&] { b.run(taken, s.step.tensors); });
  a.run(taken, s.step.tensors);
  expect_right(s.step);
}

}  // namespace
}  // namespace kvloom::test
