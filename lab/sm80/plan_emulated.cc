// The device's planner on the emulated GPU, barriers and all, against the host's: byte by byte. From the root, after the release build:
//   F="-std=c++20 -O1 -w -Ilab/sm80/emulator -I. -Itests/plan"; g++ $F -c lab/sm80/emulator/simt.cc -o simt.o
//   g++ $F -include lab/sm80/emulator/simt.h lab/sm80/plan_emulated.cc simt.o build/release/kvloom/libkvloom.a -lfmt -ldl -lpthread && ./a.out 0 10000
#include "kvloom/device/plan/plan_stream.cuh"

#include "tests/plan/device_steps.h"

#include <cstdio>
#include <cstdlib>

using namespace kvloom;
using namespace kvloom::test;

int main(int argc, char** argv) {
  const uint64_t first = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0, last = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : first + 500;
  int bad = 0;
  for (uint64_t seed = first; seed < last; ++seed) {
    DeviceStep s;
    make_device_step(seed, s);
    plan::Planner planner(s.spec, s.capacity, s.config);
    PlanBuffer want(planner.layout().plan_bytes);
    planner.plan(s.b.batch, want.data, want.bytes);
    std::vector<char> got(size_t(want.bytes), char(kUntouched));
    std::vector<uint32_t> counters(size_t(planner.layout().max_units), 0xa5a5a5a5u);
    plan::PlanVerdict verdict{};
    plan::DeviceArgs a = device_args_of(s, planner.layout(), s.b.batch);
    std::vector<char> tables(size_t(plan::plan_table_bytes(a)));
    a.plan = got.data(), a.counters = counters.data(), a.verdict = &verdict;
    a.tables = tables.size() > plan::kPlanTableBytes ? tables.data() : nullptr;
    simt::launch([](const void* p) { plan_stream(*static_cast<const plan::DeviceArgs*>(p)); }, &a, device_plan::kCtas,
                 device_plan::threads_for(int64_t(a.num_requests) * a.request_lists, a.header.num_ctas),
                 int(sizeof(device_plan::SharedMemory)));
    const std::string fault = device_plan_fault(got, counters, want);
    if (fault.empty()) continue;
    ++bad;
    std::printf("seed %lu: %s\n", (unsigned long)seed, fault.c_str());
  }
  std::printf("%lu steps, %d bad\n", (unsigned long)(last - first), bad);
  return bad != 0;
}
