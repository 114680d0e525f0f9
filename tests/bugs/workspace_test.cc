// WS: how much working memory, and whose.
#include "tests/bugs/bug_case.h"

#include <memory>

namespace kvloom::bugs {
namespace {

struct AlignedMemory {
  explicit AlignedMemory(int64_t bytes) : memory(size_t(bytes) + 64) {}
  char* data() { return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64; }
  std::vector<char> memory;
};

TEST(Workspace, B79_TheSizeIsExactForManyHeadsAndLargeDims) {
  for (const int32_t heads : {1, 32, 64}) {
    for (const int32_t dim : {64, 576}) {
      AttentionSpec spec;
      spec.num_qo_heads = heads;
      spec.num_kv_heads = 1;
      spec.head_dim_qk = dim;
      spec.head_dim_vo = dim == 576 ? 512 : dim;
      spec.q_dtype = spec.kv_dtype = DType::bf16;
      for (const Policy policy : {Policy::stream, Policy::fill, Policy::fixed_split}) {
        const Capacity capacity{33, 40, 20000, 0, 0};
        const EngineOptions options = with_policy(policy, 33);
        const int64_t bytes = Engine::workspace_size(spec, capacity, options);
        AlignedMemory memory(bytes);
        Engine exact(spec, capacity, options, {memory.data(), bytes});
        const std::string message = error_of([&] { Engine small(spec, capacity, options, {memory.data(), bytes - 1}); });
        EXPECT_NE(message.find(std::to_string(bytes)), std::string::npos) << message;
        EXPECT_NE(message.find(std::to_string(bytes - 1)), std::string::npos) << message;
      }
    }
  }
}

TEST(Workspace, B80_OneWorkspaceForAllPathsInTurn) {
  // Decode, prefill, windows, MLA and fp8 on one block of memory, 0xFF between them: nobody counts on what is there.
  const char* names[] = {"B90.page_256", "B17.prefill", "B20.window", "B03.page64", "B82.scale_3", "B87.lengths", "B45.two_empty_of_64"};
  std::vector<std::unique_ptr<CaseData>> data;
  int64_t most = 0;
  const EngineOptions options = with_policy(Policy::automatic, 20);
  for (const char* name : names) {
    data.push_back(std::make_unique<CaseData>(bug_case(name)));
    most = std::max(most, Engine::workspace_size(data.back()->what().spec, data.back()->capacity(), options));
  }
  AlignedMemory memory(most);
  for (const bool poison : {true, false}) {  // ... and without: what the last engine left is no better
    for (int round = 0; round < 2; ++round) {
      for (const auto& d : data) {
        if (poison) std::fill(memory.memory.begin(), memory.memory.end(), char(0xff));
        Engine engine(d->what().spec, d->capacity(), options, {memory.data(), most});
        const Plan plan = engine.plan(d->batch());
        std::vector<double> o, lse;
        d->reference(o, lse);
        for (int again = 0; again < 2; ++again) {
          const Output got = run_plan(engine, plan, *d);
          EXPECT_EQ(check::compare(d->what(), got.o, got.lse, o, lse).fault, "") << d->what().name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvloom::bugs
