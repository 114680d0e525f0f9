// Cubins of the fake driver's kernels, put into the cache that KVLOOM_CACHE_DIR names: what a test does in the place of compiling.
#pragma once

#include "kvloom/contract/spec.h"
#include "kvloom/jit/unit.h"

namespace kvloom::test {

/// The kernels of `spec`, of every family that runs it: one spec a key, for the life of a process. `shared_bytes`: 0, or what every entry
/// is said to take; `emulated`: as sm90's kernels are where they run on an emulated GPU. False: the cache can't be written.
bool store_fake_kernel(const AttentionSpec& spec, bool fixed_split = false, int32_t shared_bytes = 0, bool emulated = false);
/// The same for what is no attention.
bool store_fake_program(const jit::Program& program);

}  // namespace kvloom::test

extern "C" {
/// Of the fake driver, for tests in other languages: the kernels of a key (contract/kernel_key.h) with these heads and pages, the
/// operations around attention and the planner. 0: no such key, or the cache can't be written.
int fake_add_kernel(const char* key, int num_qo_heads, int num_kv_heads, int page_size);
}
