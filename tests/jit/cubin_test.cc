// Device variables are read from cubins as the compiler makes them, and from files cut short as far as they go.
#include "kvloom/jit/cubin.h"

#include "kvloom/jit/compile.h"
#include "tests/jit/nvrtc_here.h"

#include <cstring>

namespace kvloom::jit {
namespace {

TEST(Cubin, VariablesAreFoundByName) {
  NEED_NVRTC();
  std::string log;
  const std::string cubin = compile_program(
      {"test.variables", "extern \"C\" __device__ int first[2] = {7, 9};\nextern \"C\" __device__ int second = 11;\nextern \"C\" __global__ void f() { first[0] += second; }\n"}, "sm_90a", log);
  int values[3] = {};
  const std::string first = variable_of(cubin, "first"), second = variable_of(cubin, "second");
  ASSERT_EQ(first.size(), 8u);
  ASSERT_EQ(second.size(), 4u);
  std::memcpy(values, first.data(), 8);
  std::memcpy(values + 2, second.data(), 4);
  EXPECT_EQ(values[0], 7);
  EXPECT_EQ(values[1], 9);
  EXPECT_EQ(values[2], 11);
  for (const char* absent : {"", "firs", "first2", "third"}) EXPECT_EQ(variable_of(cubin, absent), "") << absent;
  EXPECT_TRUE(has_kernel(cubin, "f"));
  for (const char* absent : {"", "g", "first"}) EXPECT_FALSE(has_kernel(cubin, absent)) << absent;
  for (size_t bytes = 0; bytes < cubin.size(); bytes += 7) {  // never past the end
    const std::string got = variable_of(std::string(cubin, 0, bytes), "first");
    EXPECT_TRUE(got.empty() || got == first) << bytes;
  }
  EXPECT_FALSE(has_kernel("", "f"));
  EXPECT_EQ(variable_of("FAKECUBI and no ELF file of any kind, but longer than the header that one begins with", "first"), "");
}

}  // namespace
}  // namespace kvloom::jit
