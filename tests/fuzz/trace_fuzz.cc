// libFuzzer entry of the trace readers; tests/fuzz/CMakeLists.txt says how to build and run it.
#include "tests/fuzz/trace_fuzz_body.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvloom::replay::fuzz_trace({reinterpret_cast<const char*>(data), size});
  return 0;
}
