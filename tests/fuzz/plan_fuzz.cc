// libFuzzer entry of planner and validator; tests/fuzz/CMakeLists.txt says how to build and run it.
#include "tests/fuzz/plan_fuzz_body.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvloom::plan::fuzz_plan(data, size);
  return 0;
}
