// Tests that compile need NVRTC: found at run time like in the product, and skipped with its own words where it is not.
#pragma once

#include "kvloom/jit/nvrtc.h"

#include <gtest/gtest.h>

#define NEED_NVRTC()                                                   \
  do {                                                                 \
    std::string why;                                                   \
    if (kvloom::jit::Nvrtc::find(why) == nullptr) GTEST_SKIP() << why; \
  } while (0)
