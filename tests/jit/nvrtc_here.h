// Tests that compile need NVRTC: found at run time like in the product, and skipped with its own words where it is not. With
// KVLOOM_REQUIRE_NVRTC=1 they fail there instead (.ci/run).
#pragma once

#include "kvloom/jit/nvrtc.h"
#include "kvloom/support/files.h"

#include <gtest/gtest.h>

#define NEED_NVRTC()                                                                                            \
  do {                                                                                                          \
    std::string why;                                                                                            \
    if (kvloom::jit::Nvrtc::find(why) != nullptr) break;                                                        \
    if (!kvloom::environment("KVLOOM_REQUIRE_NVRTC").empty()) FAIL() << "KVLOOM_REQUIRE_NVRTC is set: " << why; \
    GTEST_SKIP() << why;                                                                                        \
  } while (0)
