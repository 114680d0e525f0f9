// The fake driver's attention of family sm90, on emulated units: found by what they compute.
#include "kvloom/contract/kernel_key.h"
#include "simt.h"
#include "tests/cuda/fake_kernels.h"
#include "kvloom/contract/attend_boxes.h"
#include "kvloom/contract/unit_facts.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#define UNIT(name, key)                                                                                            \
  extern "C" void attend_memory_##name(const kvloom::BoxedAttendArgs);                                              \
  extern "C" [[gnu::weak]] void attend_compute_##name(const kvloom::BoxedAttendArgs);                               \
  extern "C" [[gnu::weak]] void attend_mixed_##name(const kvloom::BoxedAttendArgs);                                 \
  extern "C" [[gnu::weak]] void attend_small_##name(const kvloom::BoxedAttendArgs);                                 \
  extern "C" kvloom::KernelFacts attend_memory_##name##_facts;                                                      \
  extern "C" [[gnu::weak]] kvloom::KernelFacts attend_compute_##name##_facts, attend_mixed_##name##_facts, attend_small_##name##_facts;
#include "emulated.inc"
#undef UNIT

namespace kvloom::test {
namespace {

using Entry = void (*)(const BoxedAttendArgs);
struct Kernel {
  Entry entry;
  const KernelFacts* facts;
};
using Unit = std::map<std::string, Kernel>;
const std::map<std::string, Unit> units = {
#define UNIT(name, key)                                                                 \
  {key,                                                                                 \
   {{"attend_memory", {attend_memory_##name, &attend_memory_##name##_facts}},           \
    {"attend_compute", {attend_compute_##name, &attend_compute_##name##_facts}},        \
    {"attend_mixed", {attend_mixed_##name, &attend_mixed_##name##_facts}},              \
    {"attend_small", {attend_small_##name, &attend_small_##name##_facts}}}},
#include "emulated.inc"
#undef UNIT
};
Entry running;

bool emulate_boxed(const KernelCall& call) {
  if (!call.boxed || call.spec.variant.user != nullptr) return false;
  const BoxedAttendArgs args = call.as<BoxedAttendArgs>();
  const std::string key = unit_key("sm90", call.spec, view_plan(args.attend.plan).header->split_tokens > 0);
  static std::set<std::string> seen;
  const auto found = units.find(key);
  if (seen.insert(key).second) std::fprintf(stderr, "emulator: %s %s\n", key.c_str(), found == units.end() ? "is not there: the CPU's" : "runs");
  if (found == units.end()) return false;
  const Kernel& kernel = found->second.at(call.name);
  const KernelFacts& facts = *kernel.facts;
  running = kernel.entry;
  simt::launch([](const void* a) { running(*static_cast<const BoxedAttendArgs*>(a)); }, &args, int(call.grid), facts.threads, facts.shared_bytes);
  return true;
}

const bool set = (emulate = emulate_boxed, true);

}  // namespace
}  // namespace kvloom::test
