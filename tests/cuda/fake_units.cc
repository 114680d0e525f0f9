#include "tests/cuda/fake_units.h"

#include "kvloom/contract/kernel_key.h"
#include "kvloom/jit/compile.h"
#include "kvloom/runtime/device.h"
#include "kvloom/runtime/registry.h"
#include "kvloom/runtime/sm90.h"
#include "tests/cuda/fake_cubin.h"

namespace kvloom::test {

bool store_fake_kernel(const AttentionSpec& spec, bool fixed_split, int32_t shared_bytes, bool emulated) {
  for (const char* family : {"sm80", "sm90"}) {
    if (family == std::string("sm90") && !runtime::sm90_refusal(spec, runtime::Device::get(0).target(), fixed_split).empty()) continue;
    const runtime::Choice choice = runtime::choose_attend(spec, {Backend::cuda, nullptr, 0, nullptr, family, fixed_split});
    const jit::Unit timed = jit::with_timeline(choice.unit);
    FakeCubin cubin;
    cubin.spec = spec;
    if (choice.winner().kernel->family == std::string("sm90")) {  // as its kernels are
      const int32_t rows = spec.head_dim_qk == 64 && spec.head_dim_vo == 64 ? 192 : 128;
      cubin.memory = cubin.mixed = {384, 190000, 1, 1, 16, 0, is_fp8(spec.kv_dtype) ? 2 : 1, 128};
      if (runtime::sm90_by_warpgroups(spec, fixed_split)) {  // else they are family sm80's
        cubin.compute = emulated ? KernelFacts{640, 210000, 1, 1, 16, 2 * rows} : KernelFacts{384, 210000, 1, 2, 32, rows};
        cubin.mixed = {384, 210000, 1, 1, 16, 128, 1, 128};
        cubin.small = {384, 210000, 1, 1, 32, rows};
      }
    }
    for (KernelFacts* entry : {&cubin.memory, &cubin.compute, &cubin.mixed}) {
      if (shared_bytes > 0) entry->shared_bytes = shared_bytes;
    }
    for (const jit::Unit* unit : {&choice.unit, &timed}) {
      for (const jit::Program& program : unit->programs()) {
        jit::CacheName name = jit::cache_name(program, choice.gpu.arch);
        name.compiler = "fake";
        if (!jit::Cache::of_environment().store(name, cubin.bytes())) return false;
      }
    }
  }
  return true;
}

bool store_fake_program(const jit::Program& program) {
  jit::CacheName name = jit::cache_name(program, "sm_90a");
  name.compiler = "fake";
  return jit::Cache::of_environment().store(name, FakeCubin().bytes());
}

}  // namespace kvloom::test

int fake_add_kernel(const char* key, int num_qo_heads, int num_kv_heads, int page_size) try {
  kvloom::ParsedKey parsed = kvloom::parse_kernel_key(key);
  if (!parsed.fault.empty()) return 0;
  parsed.spec.num_qo_heads = num_qo_heads;
  parsed.spec.num_kv_heads = num_kv_heads;
  parsed.spec.page_size = page_size;
  using namespace kvloom;
  return test::store_fake_kernel(parsed.spec, parsed.fixed_split) && test::store_fake_program(jit::plan_program()) &&
         test::store_fake_program(jit::ops_program());
} catch (const std::exception&) {
  return 0;
}
