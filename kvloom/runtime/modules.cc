#include "kvloom/runtime/modules.h"

#include "kvloom/contract/unit_facts.h"
#include "kvloom/jit/compile.h"
#include "kvloom/support/check.h"
#include "kvloom/support/format.h"
#include "kvloom/support/made_once.h"

#include <memory>

namespace kvloom::runtime {
namespace {

using jit::check_driver;
using jit::driver;

/// Facts of AttendModule::entries, in their order.
constexpr UnitFacts::Entry UnitFacts::*kFacts[AttendModule::kEntries] = {&UnitFacts::memory, &UnitFacts::compute, &UnitFacts::mixed, &UnitFacts::small};

/// The place among them of a unit's entry "attend_mixed".
int index_of(const jit::Unit::Entry& entry, const std::string& key) {
  for (int i = 0; i < AttendModule::kEntries; ++i) {
    if (entry.name == std::string("attend_") + AttendModule::kNames[i]) return i;
  }
  fail(ErrorCode::internal, "{}: got an entry {}, wanted one of attention's", key, entry.name);
}

UnitFacts read_facts(jit::CuModule module, const std::string& key) {
  jit::CuAddress address = 0;
  size_t bytes = 0;
  check_driver(driver().module_get_global(&address, &bytes, module, "kvloom_facts"), "cuModuleGetGlobal", key + " has no kvloom_facts");
  UnitFacts facts{};
  if (bytes != sizeof facts) fail(ErrorCode::internal, "{}: kvloom_facts: got {} bytes, wanted {}", key, bytes, sizeof facts);
  check_driver(driver().memcpy_dtoh(&facts, address, sizeof facts), "cuMemcpyDtoH", key);
  return facts;
}

AttendModule::Entry make_entry(jit::CuModule module, const std::string& key, const char* name, const UnitFacts::Entry& facts,
                               const GpuTarget& target) {
  const jit::Driver& d = driver();
  AttendModule::Entry e;
  check_driver(d.module_get_function(&e.function, module, name), "cuModuleGetFunction", key + ": " + name);
  e.threads = facts.threads;
  e.shared_bytes = facts.shared_bytes;
  if (e.shared_bytes > target.shared_bytes_block) {
    fail(ErrorCode::internal, "{}: {}: got {} bytes of shared memory to ask for, wanted at most {} on {}", key, name, e.shared_bytes,
         target.shared_bytes_block, target.name);
  }
  check_driver(d.func_set_attribute(e.function, jit::kCuFunctionMaxDynamicSharedBytes, e.shared_bytes), "cuFuncSetAttribute", key);
  check_driver(d.func_get_attribute(&e.registers, jit::kCuFunctionRegisters, e.function), "cuFuncGetAttribute", key);
  check_driver(d.func_get_attribute(&e.local_bytes, jit::kCuFunctionLocalBytes, e.function), "cuFuncGetAttribute", key);
  check_driver(d.occupancy_max_active_blocks(&e.ctas_per_sm, e.function, e.threads, size_t(e.shared_bytes)),
               "cuOccupancyMaxActiveBlocksPerMultiprocessor", key);
  if (e.ctas_per_sm == 0) {
    fail(ErrorCode::internal, "{}: {}: got no CTA that fits an SM of {} ({} threads, {} registers, {} bytes of shared memory), wanted one",
         key, name, target.name, e.threads, e.registers, e.shared_bytes);
  }
  if (facts.ctas_per_sm > 0 && facts.ctas_per_sm < e.ctas_per_sm) e.ctas_per_sm = facts.ctas_per_sm;
  return e;
}

AttendModule load(const Device& device, const jit::Unit& unit) {
  const std::vector<std::string> cubins = jit::cubins_of(unit, device.target().arch);
  const ContextGuard guard(device);
  AttendModule loaded;
  for (size_t i = 0; i < cubins.size(); ++i) {
    jit::CuModule module = nullptr;  // for the life of the process
    check_driver(driver().module_load_data(&module, cubins[i].data()), "cuModuleLoadData",
                 unit.key + "; it can't be loaded while a stream of this thread is being captured");
    const jit::Unit::Entry& entry = unit.entries[i];
    const int at = index_of(entry, unit.key);
    const UnitFacts facts = read_facts(module, unit.key);
    loaded.entries[at] = make_entry(module, unit.key, entry.name.c_str(), facts.*kFacts[at], device.target());
  }
  if (loaded.entries[3].function == nullptr) loaded.entries[3] = loaded.entries[0];
  return loaded;
}

}  // namespace

const AttendModule& attend_module(const Device& device, const jit::Unit& unit) {
  static auto* const modules = new MadeOnce<AttendModule>;
  return modules->get(kvloom::format("{}\n{}", device.target().device, unit.whole()),
                      [&] { return std::make_unique<const AttendModule>(load(device, unit)); });
}

}  // namespace kvloom::runtime
