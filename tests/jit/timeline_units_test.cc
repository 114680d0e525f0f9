// Units with marks of time: other entries of the cache than the usual ones, and they compile; the usual ones have nothing of it.
#include "kvloom/api/kernels.h"
#include "kvloom/jit/compile.h"
#include "tests/jit/nvrtc_here.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

namespace kvloom::jit {
namespace {

using test::has;

constexpr const char* kKeys[] = {"attend.sm90.bf16.d128.paged", "attend.sm80.bf16.d64.ragged.fixed-split"};

TEST(TimelineUnits, StandApartFromTheUsualOnes) {
  for (const char* key : kKeys) {
    const std::string plain = kernel_source(key, "sm_90a"), timed = kernel_source(key, "sm_90a", nullptr, true);
    EXPECT_FALSE(has(plain, "KVLOOM_TIMELINE"));
    const std::string head = std::string("// ") + key + "\n";
    EXPECT_EQ(timed, head + "#define KVLOOM_TIMELINE\n" + plain.substr(head.size()));
    const Program a{key, plain}, b{key, timed};
    EXPECT_NE(cache_name(a, "sm_90a").input, cache_name(b, "sm_90a").input);
    EXPECT_FALSE(has_timeline(a));
    EXPECT_TRUE(has_timeline(b));
  }
}

TEST(TimelineUnits, TheRemedyWithoutJitAsksForThem) {
  const test::TemporaryFolder folder;
  const test::Environment no_jit("KVLOOM_NO_JIT", "1");
  const Cache cache(folder.path());
  const Program timed{std::string(kKeys[0]) + ":attend_memory", kernel_source(kKeys[0], "sm_90a", nullptr, true)};
  const std::string text = test::error_of([&] { cubin_of(timed, "sm_90a", cache); }, ErrorCode::unsupported);
  EXPECT_TRUE(has(text, std::string("--key ") + kKeys[0] + " --timeline\"")) << text;
}

TEST(TimelineUnits, Compile) {
  NEED_NVRTC();
  const test::TemporaryFolder folder;
  const test::Environment cache("KVLOOM_CACHE_DIR", folder.path().c_str());
  const test::Environment quiet("KVLOOM_JIT_QUIET", "1");
  for (const char* key : kKeys) {
    EXPECT_TRUE(warm_kernel(key, "sm_90a", nullptr, true)) << key;
    EXPECT_FALSE(warm_kernel(key, "sm_90a", nullptr, true)) << key << ": is there by now";
  }
}

}  // namespace
}  // namespace kvloom::jit
