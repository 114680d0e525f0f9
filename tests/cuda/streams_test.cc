// Engines in several threads and on several streams, each for itself: the bits of a serial run, every time. And what kernels before left
// behind.
#include "tests/cuda/engine_fixture.h"

#include <thread>

namespace kvloom::test {
namespace {

using GpuStreams = GpuEngine;

/// A step with its engine, stream and plan, and the bits that it has when it runs alone.
struct Lane {
  Lane(std::vector<Request> requests, uint32_t seed, const Capacity& capacity, const EngineOptions& options = cuda_options())
      : step(make_step(std::move(requests), gpu_spec(), seed)), engine(gpu_spec(), capacity, options), stream(0), tensors(step) {}
  void run() {
    const Plan plan = engine.plan(step.batch);
    engine.run(plan, tensors.tensors, stream.handle());
  }
  std::vector<char> bits() {
    stream.synchronize();
    return bits_of(tensors, step);
  }
  Step step;
  Engine engine;
  GpuStream stream;
  GpuStep tensors;
};

/// f(lane, what): steps of few rows, of many and of both, each on every family that the GPU runs. Lengths end inside pages and tiles.
template <class F>
void on_every_kernel(const FakeGpu& gpu, F&& f) {
  const std::vector<Request> steps[] = {{{1, 13}, {2, 300}, {1, 1000}, {1, 1}}, {{11, 17}, {40, 333}, {12, 34}, {50, 300}}, {{1, 13}, {7, 300}, {40, 333}, {1, 1}, {11, 17}, {1, 1000}}};
  for (const char* kernel : {"sm80", "sm90"}) {
    if (kernel == std::string("sm90") && !gpu.is_fake() && gpus()[0].arch != "sm_90a") continue;
    for (size_t i = 0; i < std::size(steps); ++i) {
      EngineOptions options = cuda_options();
      options.kernel = kernel;
      Lane lane(steps[i], 3, large(), options);
      f(lane, std::string(kernel) + ", step " + std::to_string(i));
    }
  }
}

std::vector<Request> lane_requests(int i) { return {{1, 200 + 37 * i}, {3, 60}, {i % 5, 40 + i}, {1, 1000 - 20 * i}}; }

// B103: first calls of all threads at once; a thousand runs.
TEST_F(GpuStreams, B103_EightThreadsOfFourStreams) {
  constexpr int kThreads = 8, kStreams = 4;
  const int rounds = gpu.is_fake() ? 3 : 32;  // the fake driver does one thing at a time
  std::vector<std::vector<char>> serial(kThreads * kStreams), parallel(kThreads * kStreams);
  for (int i = 0; i < kThreads * kStreams; ++i) {
    Lane lane(lane_requests(i), uint32_t(i + 1), large());
    lane.tensors.poison();
    lane.run();
    serial[size_t(i)] = lane.bits();
    expect_gpu_right(lane.step, std::to_string(i));
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::deque<Lane> lanes;
      for (int s = 0; s < kStreams; ++s) {
        const int i = t * kStreams + s;
        lanes.emplace_back(lane_requests(i), uint32_t(i + 1), large()).tensors.poison();
      }
      for (int n = 0; n < rounds; ++n) {
        for (Lane& lane : lanes) lane.run();
      }
      for (int s = 0; s < kStreams; ++s) parallel[size_t(t * kStreams + s)] = lanes[size_t(s)].bits();
    });
  }
  for (std::thread& t : threads) t.join();
  for (size_t i = 0; i < serial.size(); ++i) EXPECT_EQ(serial[i], parallel[i]) << i;
}

// B102: different inputs on two streams, interleaved.
TEST_F(GpuStreams, B102_TwoStreamsInterleaved) {
  Lane a({{1, 900}, {1, 800}}, 1, large()), b({{1, 700}, {3, 1000}}, 7, large());
  a.run();
  const std::vector<char> alone_a = a.bits();
  b.run();
  const std::vector<char> alone_b = b.bits();
  for (int i = 0; i < 100; ++i) {
    a.tensors.poison();
    b.tensors.poison();
    a.run();
    b.run();
    ASSERT_EQ(a.bits(), alone_a) << i;
    ASSERT_EQ(b.bits(), alone_b) << i;
  }
}

// The layers of a step behind its first: one call of the driver that does something. Another stream, and the step's copy has to be waited for.
TEST_F(CudaEngine, LayersOfAStepAreLaunchesAlone) {
  Step s = make_step({{1, 300}, {2, 70}});
  Engine engine(s.spec, large(), cuda_options());
  GpuStep g(s);
  GpuStream one(0), two(0);
  Plan plan = engine.plan(s.batch);
  engine.run(plan, g.tensors, one.handle());
  gpu.reset();
  for (int layer = 0; layer < 5; ++layer) engine.run(plan, g.tensors, one.handle());
  EXPECT_EQ(gpu.count("cuLaunchKernelEx"), 5);
  for (const char* call : {"cuStreamIsCapturing", "cuPointerGetAttributes", "cuStreamWaitEvent", "cuEventRecord", "cuEventSynchronize", "cuMemcpyHtoDAsync"}) {
    EXPECT_EQ(gpu.count(call), 0) << call;
  }
  engine.run(plan, g.tensors, two.handle());
  EXPECT_EQ(gpu.count("cuStreamIsCapturing"), 1);
  EXPECT_EQ(gpu.count("cuStreamWaitEvent"), 2);  // for the partials, which are in use, and for the plan
  engine.run(plan, g.tensors, two.handle());
  engine.replan(plan, s.batch);
  engine.run(plan, g.tensors, two.handle());
  EXPECT_EQ(gpu.count("cuStreamIsCapturing"), 2);
  EXPECT_EQ(gpu.count("cuMemcpyHtoDAsync"), 1);
  g.poison();
  two.begin_capture();  // as many layers as one likes, by the same launches alone
  for (int layer = 0; layer < 2; ++layer) engine.run(plan, g.tensors, two.handle());
  two.end_capture();
  two.launch();
  two.synchronize();
  expect_device_right(g, s);
}

// A copy that is still on its way when the next step's is put into another stream: the later one counts.
TEST_F(GpuStreams, UploadsInTwoStreamsFollowOneAnother) {
  Engine engine(gpu_spec(), large(), cuda_options());
  Step a = make_step({{1, 900}, {1, 800}}), b = make_step({{1, 700}, {1, 1000}}, gpu_spec(), 7);
  GpuStep gb(b);
  GpuStream first(0), second(0);
  Plan plan = engine.plan(a.batch);
  engine.upload(plan, first.handle());
  engine.replan(plan, b.batch);
  engine.upload(plan, second.handle());
  for (GpuStream* done : {&second, &first, &second}) {
    gb.poison();
    engine.run(plan, gb.tensors, second.handle());
    done->synchronize();
    second.synchronize();
    expect_device_right(gb, b);
  }
}

// Steps of a graph: what ran elsewhere before its capture is waited for once.
TEST_F(CudaEngine, UploadsOfAGraphAreCopiesAlone) {
  Step s = make_step({{1, 300}, {2, 70}});
  Engine engine(s.spec, large(), cuda_options());
  GpuStep g(s);
  GpuStream one(0), two(0);
  Plan plan = engine.plan(s.batch);
  engine.run(plan, g.tensors, one.handle());
  engine.replan(plan, s.batch);
  engine.upload(plan, two.handle());
  gpu.reset();
  for (int step = 0; step < 3; ++step) {
    engine.replan(plan, s.batch);
    engine.upload(plan, two.handle());
  }
  EXPECT_EQ(gpu.count("cuMemcpyHtoDAsync"), 3);
  EXPECT_EQ(gpu.count("cuStreamWaitEvent"), 0);
}

TEST_F(GpuStreams, TwoPlansOfOneEngineInFlight) {
  Engine engine(gpu_spec(), large(), cuda_options());
  Step a = make_step({{1, 900}, {1, 800}}), b = make_step({{1, 700}, {3, 1000}}, gpu_spec(), 7);
  GpuStep ga(a), gb(b);
  GpuStream first(0), second(0);
  Plan pa = engine.plan(a.batch), pb = engine.plan(b.batch);
  for (int i = 0; i < 20; ++i) {
    ga.poison();
    gb.poison();
    for (int layer = 0; layer < 4; ++layer) {
      engine.run(pa, ga.tensors, first.handle());
      engine.run(pb, gb.tensors, second.handle());
    }
    engine.replan(pa, a.batch);  // while the last of its runs may still be under way
    engine.replan(pb, b.batch);
  }
  first.synchronize();
  second.synchronize();
  expect_device_right(ga, a);
  expect_device_right(gb, b);
}

// B14: what stands in slots that hold no token never changes a bit.
TEST_F(GpuStreams, B14_UnusedSlotsMayHoldAnything) {
  on_every_kernel(gpu, [](Lane& lane, const std::string& what) {
    lane.tensors.poison();
    lane.run();
    const std::vector<char> with_nan = lane.bits();  // make_step() left NaN there
    expect_gpu_right(lane.step, what);
    for (Array* cache : {&lane.step.k, &lane.step.v}) {
      for (int64_t i = 0; i < cache->count(); ++i) {
        if (std::isnan(cache->get(i))) cache->set(i, 0.0f);
      }
    }
    lane.tensors.refill(lane.step);
    lane.run();
    EXPECT_EQ(lane.bits(), with_nan) << what;
  });
}

constexpr const char* kPoisonText = R"(// test.poison
extern "C" __global__ void poison_shared(unsigned long long word) {
  __shared__ unsigned long long block[6144];
  for (int i = threadIdx.x; i < 6144; i += blockDim.x) block[i] = word;
  __syncthreads();
  if (block[threadIdx.x] == 1) __trap();
}
)";

// B17: after a kernel that leaves NaN in all shared memory.
TEST_F(GpuStreams, B17_SharedMemoryFullOfNan) {
  gpu.add_program({"test.poison", kPoisonText});
  GpuProgram poison(0, "test.poison", kPoisonText);
  on_every_kernel(gpu, [&](Lane& lane, const std::string& what) {
    lane.tensors.poison();
    lane.run();
    const std::vector<char> clean = lane.bits();
    expect_gpu_right(lane.step, what);
    for (int i = 0; i < 3; ++i) {
      unsigned long long word = ~0ull;
      poison.launch("poison_shared", uint32_t(gpus()[0].num_sms) * 8, 256, {&word}, lane.stream);
      lane.tensors.poison();
      lane.run();
      EXPECT_EQ(lane.bits(), clean) << what;
    }
  });
}

}  // namespace
}  // namespace kvloom::test
