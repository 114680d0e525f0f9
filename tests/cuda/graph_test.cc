// Graphs that outlive the step they were captured with: every replay is right, and has the bits of the same plan run without a graph.
#include "tests/cuda/captured.h"

namespace kvloom::test {
namespace {

std::vector<Request> decodes(int32_t count, int32_t kv_len) { return std::vector<Request>(size_t(count), {1, kv_len}); }

using GpuGraph = GpuEngine;

TEST_F(GpuGraph, B68_LengthsAndSplitsChange) {
  Engine engine(gpu_spec(), {8, 64, 40000, 0, 0}, cuda_options());
  Step first = make_step({{1, 20000}, {1, 1}, {1, 1}, {1, 1}});
  Captured graph(engine, first);
  const std::vector<std::vector<Request>> steps = {{{1, 300}, {1, 4096}, {1, 17}, {1, 2000}}, {{1, 4}, {1, 900}, {1, 1}, {1, 1}},
                                                   {{1, 18000}, {1, 1}, {1, 2}, {1, 3}},      {{2, 9}, {1, 700}, {0, 5}, {1, 0}},
                                                   {{4, 700}, {0, 0}, {0, 7}, {0, 1}},        {{0, 0}, {0, 0}, {0, 0}, {0, 0}},
                                                   {{1, 1}, {1, 1}, {1, 1}, {1, 1}}};
  for (size_t i = 0; i < steps.size(); ++i) {
    Step s = make_step(steps[i], gpu_spec(), uint32_t(i + 5));
    graph.replay(s, std::to_string(i));
  }
  EXPECT_LE(graph.captures, 2) << "only the step without queries may be of another kind";
}

// Layers of two kinds in one graph, as models have whose windows alternate: two engines, two plans.
TEST_F(GpuGraph, B68_WindowsAndFullLayersTogether) {
  AttentionSpec window = gpu_spec();
  window.variant.range.left = 255;
  const Capacity capacity = {4, 16, 40000, 0, 0};
  Engine engines[2] = {{gpu_spec(), capacity, cuda_options()}, {window, capacity, cuda_options()}};
  const std::vector<Request> captured = {{1, 4096}, {1, 1}, {1, 1}, {1, 1}};
  Step largest = make_step({{4, 20000}});
  GpuStep tensors[2] = {GpuStep(largest), GpuStep(largest)};
  GpuStream stream(0);
  Step first[2] = {make_step(captured), make_step(captured, window)};
  Plan plans[2] = {engines[0].plan(first[0].batch), engines[1].plan(first[1].batch)};
  const auto fit = [&](int i, const Step& s) {
    RunTensors& t = tensors[i].tensors;
    t.q.shape[0] = t.o.shape[0] = t.lse.shape[0] = s.qo_indptr.back();
    t.pages.size = int64_t(s.pages.size());
  };
  for (int i = 0; i < 2; ++i) fit(i, first[i]), engines[i].upload(plans[i], stream.handle());
  stream.begin_capture();
  for (int i = 0; i < 2; ++i) engines[i].run(plans[i], tensors[i].tensors, stream.handle());
  stream.end_capture();
  const uint64_t keys[2] = {plans[0].graph_key(), plans[1].graph_key()};
  const std::vector<std::vector<Request>> steps = {{{1, 300}, {1, 4096}, {1, 17}, {1, 2000}}, {{1, 5}, {1, 1}, {1, 9000}, {1, 256}}};
  for (size_t n = 0; n < steps.size(); ++n) {
    Step now[2] = {make_step(steps[n], gpu_spec(), uint32_t(n + 5)), make_step(steps[n], window, uint32_t(n + 5))};
    for (int i = 0; i < 2; ++i) {
      engines[i].replan(plans[i], now[i].batch);
      ASSERT_EQ(plans[i].graph_key(), keys[i]);
      tensors[i].refill(now[i]);
      tensors[i].poison();
      engines[i].upload(plans[i], stream.handle());
    }
    stream.launch();
    stream.synchronize();
    for (int i = 0; i < 2; ++i) expect_device_right(tensors[i], now[i], std::to_string(n) + (i == 0 ? ", full" : ", window"));
  }
}

/// Replays of one captured graph, which is good for every step.
void replay_all(Engine& engine, const std::shared_ptr<GpuStream>& stream, const std::vector<Request>& captured, const std::vector<std::vector<Request>>& steps, const std::string& what) {
  Step largest = make_step({{64, 4000}, {0, 30000}}), first = make_step(captured);
  Captured graph(engine, largest, first, stream);
  for (size_t i = 0; i < steps.size(); ++i) {
    Step s = make_step(steps[i], gpu_spec(), uint32_t(i + 5));
    graph.replay(s, what + " " + std::to_string(i));
  }
  EXPECT_EQ(graph.captures, 0) << what << ": a step of the same kind wants no other graph";
}

// As many tokens in all, of few rows, of many and of both: how they are spread decides how many tiles there are. The first step has few of them.
TEST_F(GpuGraph, B69_TheSameTokensSpreadAnyWay) {
  Engine engine(gpu_spec(), {8, 64, 4000, 0, 0}, cuda_options());
  const auto stream = std::make_shared<GpuStream>(0);
  replay_all(engine, stream, {{57, 300}, {1, 64}, {1, 8}, {1, 90}, {1, 20}, {1, 40}, {1, 30}, {1, 100}},
             {{{17, 90}, {9, 64}, {9, 9}, {9, 90}, {9, 20}, {9, 40}, {1, 30}, {1, 100}},
              {{1, 8}, {20, 640}, {1, 8}, {9, 9}, {1, 20}, {22, 40}, {1, 30}, {9, 10}},
              {{0, 8}, {0, 640}, {54, 155}, {9, 9}, {0, 20}, {1, 40}, {0, 30}, {0, 10}}},
             "both");
  replay_all(engine, stream, {{0, 300}, {0, 64}, {0, 8}, {64, 90}, {0, 200}, {0, 40}, {0, 300}, {0, 100}},
             {{{17, 90}, {9, 64}, {9, 9}, {9, 90}, {9, 20}, {11, 40}, {0, 30}, {0, 100}}, {{32, 700}, {0, 5}, {0, 5}, {0, 5}, {0, 5}, {0, 5}, {0, 5}, {32, 33}}}, "many");
  replay_all(engine, stream, {{8, 300}, {8, 64}, {8, 8}, {8, 90}, {0, 200}, {0, 40}, {0, 300}, {0, 100}},
             {{{4, 90}, {4, 64}, {4, 8}, {4, 90}, {4, 20}, {4, 40}, {4, 30}, {4, 100}}, {{0, 5}, {8, 900}, {1, 700}, {7, 90}, {8, 8}, {8, 8}, {0, 30}, {0, 100}}}, "few");
}

TEST_F(GpuGraph, B70_AllTokensInOneRequest) {
  Engine engine(gpu_spec(), {64, 64, 64 * 512, 0, 0}, cuda_options());
  Step first = make_step(decodes(64, 512));
  const auto stream = std::make_shared<GpuStream>(0);
  Captured graph(engine, first, first, stream);
  std::vector<Request> packed = decodes(64, 200);
  for (Request& r : packed) r.q_len = 0;
  packed[0] = {64, 512};
  Step s = make_step(packed, gpu_spec(), 9);
  graph.replay(s, "packed");
  EXPECT_EQ(graph.captures, 1) << "another kernel: the key has to say so";

  // So many tokens that they stay few rows: the graph is the same. Likewise beside others.
  std::vector<Request> few = decodes(8, 512), all = few;
  for (Request& r : all) r.q_len = 0;
  all[0].q_len = 8;
  replay_all(engine, stream, few, {all}, "few");
  std::vector<Request> spread = decodes(48, 512), together = spread;
  spread[0].q_len = 17, together[0].q_len = 0, together[1].q_len = 63;
  for (size_t i = 3; i < together.size(); ++i) together[i].q_len = 0;
  replay_all(engine, stream, spread, {together}, "beside others");
}

TEST_F(GpuGraph, B71_FewerRequestsThanCaptured) {
  Engine engine(gpu_spec(), {64, 64, 64 * 700, 0, 0}, cuda_options());
  Step first = make_step(decodes(64, 700));
  Captured graph(engine, first);
  for (const int32_t count : {40, 1, 64}) {
    Step s = make_step(decodes(count, 333), gpu_spec(), uint32_t(count));
    graph.replay(s, std::to_string(count));
  }
  EXPECT_EQ(graph.captures, 0);
  Step none = make_step(decodes(0, 0));  // a step without work is of a kind of its own
  graph.replay(none, "none");
  Step again = make_step(decodes(17, 333), gpu_spec(), 17);
  graph.replay(again, "17");
}

// Up to 32 packed rows a request: a kernel of its own, so a graph of its own.
TEST_F(GpuGraph, StepsOfUpTo32Rows) {
  for (const char* family : families()) {
    EngineOptions options = cuda_options();
    options.kernel = family;
    Engine engine(gpu_spec(), {8, 100, 8 * 900, 0, 0}, options);
    const std::vector<Request> most(6, {16, 900});
    Step first = make_step(most);
    EXPECT_TRUE(has(engine.plan(first.batch).explain(), "\nlaunch attend_memory_32: items of few rows\n")) << engine.plan(first.batch).explain();
    Captured graph(engine, first);
    const std::vector<std::vector<Request>> steps = {{{9, 300}}, {{16, 16}, {1, 900}, {0, 5}, {8, 777}, {13, 64}}, {{10, 0}, {2, 1}}, most};
    for (size_t i = 0; i < steps.size(); ++i) {
      Step s = make_step(steps[i], gpu_spec(), uint32_t(i + 5));
      graph.replay(s, family + std::to_string(i));
    }
    EXPECT_EQ(graph.captures, 0) << family;
    for (const std::vector<Request>& other : {std::vector<Request>{{8, 300}, {1, 20}}, {{17, 300}}, {{2, 300}, {40, 300}}}) {
      const int before = graph.captures;
      Step s = make_step(other, gpu_spec(), 3);
      graph.replay(s, std::string(family) + ": another kind");
      EXPECT_EQ(graph.captures, before + 1) << family;
    }
  }
}

// A dimension of one token has no stride that a launch needs, but the steps that follow have one.
TEST_F(GpuGraph, OneTokenIsCaptured) {
  for (const Storage storage : {Storage::paged, Storage::ragged}) {
    AttentionSpec spec = gpu_spec();
    spec.storage = storage;
    if (storage == Storage::ragged) spec.page_size = 1;
    gpu.add_kernel(spec);
    gpu.set_spec(&spec);
    for (const char* family : families()) {
      EngineOptions options = cuda_options();
      options.kernel = family;
      Engine engine(spec, {2, 8, 600, 0, 0}, options);
      Step largest = make_step({{4, 200}, {4, 200}}, spec), first = make_step({{1, 1}, {0, 0}}, spec);
      Captured graph(engine, largest, first);
      for (const std::vector<Request>& requests : {std::vector<Request>{{1, 50}, {1, 60}}, {{3, 90}, {2, 7}}, {{0, 0}, {1, 1}}}) {
        Step s = make_step(requests, spec, 7);
        graph.replay(s, family);
      }
      EXPECT_EQ(graph.captures, 0) << family;
    }
  }
  gpu.set_spec(nullptr);
}

// Tokens that lie one after the other, in buffers as large as the capacity: what was captured says neither how many there are, nor where the
// last one is.
TEST_F(GpuGraph, RaggedStepsOutgrowTheCapturedOne) {
  AttentionSpec spec = gpu_spec();
  spec.storage = Storage::ragged;
  spec.page_size = 1;
  gpu.add_kernel(spec);
  gpu.set_spec(&spec);
  EngineOptions options = cuda_options();
  if (gpu.is_fake() || gpus()[0].arch == "sm_90a") options.kernel = "sm90";  // whose tensor maps are part of a launch
  Engine engine(spec, {8, 400, 2200, 0, 0}, options);
  Step largest = make_step({{400, 2200}}, spec);
  const std::vector<std::vector<Request>> steps = {{{200, 900}, {150, 333}},          {{64, 64}, {129, 2001}, {31, 77}}, {{400, 2200}},
                                                   {{20, 30}, {9, 9}},                {{333, 335}, {17, 1801}},          {{40, 41}, {33, 65}, {0, 100}, {50, 129}}};
  Step captured = make_step({{40, 71}, {33, 33}}, spec);
  Captured graph(engine, largest, captured);
  for (size_t i = 0; i < steps.size(); ++i) {
    Step s = make_step(steps[i], spec, uint32_t(i + 5));
    graph.replay(s, std::to_string(i));
  }
  EXPECT_EQ(graph.captures, 0);
  gpu.set_spec(nullptr);
}

// Layers of one step in one graph, and a second plan of the same engine in another.
TEST_F(GpuGraph, ManyLayersInOneGraph) {
  Engine engine(gpu_spec(), large(), cuda_options());
  GpuStream stream(0);
  Step s = make_step({{1, 900}, {1, 70}, {3, 400}});
  std::deque<GpuStep> layers;
  for (int i = 0; i < 5; ++i) layers.emplace_back(s).poison();
  Plan plan = engine.plan(s.batch);
  engine.upload(plan, stream.handle());
  stream.begin_capture();
  for (GpuStep& layer : layers) engine.run(plan, layer.tensors, stream.handle());
  stream.end_capture();
  for (int i = 0; i < 3; ++i) stream.launch();
  stream.synchronize();
  for (GpuStep& layer : layers) expect_device_right(layer, s);
}

// Memory is given back in the middle of a capture: that of an engine, its workspace and a plan's.
TEST_F(GpuGraph, AnEngineIsDroppedUnderCapture) {
  Engine engine(gpu_spec(), large(), cuda_options());
  auto dropped = std::make_unique<Engine>(gpu_spec(), large(), cuda_options());
  GpuStream stream(0);
  Step s = make_step({{1, 900}, {3, 70}});
  GpuStep g(s);
  g.poison();
  Plan plan = engine.plan(s.batch);
  dropped->plan(s.batch);  // its memory rests with the engine
  engine.upload(plan, stream.handle());
  stream.begin_capture();
  engine.run(plan, g.tensors, stream.handle());
  dropped.reset();
  ASSERT_NO_THROW(stream.end_capture());
  stream.launch();
  stream.synchronize();
  expect_device_right(g, s);
}

}  // namespace
}  // namespace kvloom::test
