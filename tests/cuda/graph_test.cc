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

TEST_F(GpuGraph, B69_TheSameTokensSpreadAnyWay) {
  Engine engine(gpu_spec(), {8, 64, 4000, 0, 0}, cuda_options());
  Step first = make_step({{8, 300}, {8, 64}, {8, 8}, {8, 90}, {8, 200}, {8, 40}, {8, 300}, {8, 100}});
  Captured graph(engine, first);
  const std::vector<std::vector<Request>> steps = {{{57, 90}, {1, 64}, {1, 8}, {1, 90}, {1, 20}, {1, 40}, {1, 30}, {1, 100}},
                                                   {{0, 5}, {0, 0}, {0, 8}, {0, 90}, {0, 20}, {0, 40}, {0, 30}, {64, 200}},
                                                   {{8, 8}, {8, 640}, {8, 8}, {8, 9}, {8, 20}, {8, 40}, {8, 30}, {8, 10}}};
  for (size_t i = 0; i < steps.size(); ++i) {
    Step s = make_step(steps[i], gpu_spec(), uint32_t(i + 5));
    graph.replay(s, std::to_string(i));
  }
}

TEST_F(GpuGraph, B70_AllTokensInOneRequest) {
  Engine engine(gpu_spec(), {64, 64, 64 * 512, 0, 0}, cuda_options());
  Step first = make_step(decodes(64, 512));
  Captured graph(engine, first);
  std::vector<Request> packed = decodes(64, 200);
  for (Request& r : packed) r.q_len = 0;
  packed[0] = {64, 512};
  Step s = make_step(packed, gpu_spec(), 9);
  graph.replay(s, "packed");
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
                                                   {{10, 30}, {9, 9}},                {{333, 335}, {17, 1801}},          {{40, 41}, {33, 65}, {0, 100}, {50, 129}}};
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
