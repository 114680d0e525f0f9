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

/// The place in AttendModule::entries of a unit's entry "attend_mixed".
int index_of(const jit::Unit::Entry& entry, const std::string& key) {
  for (int i = 0; i < AttendModule::kEntries; ++i) {
    if (entry.name == std::string("attend_") + AttendModule::kNames[i]) return i;
  }
  fail(ErrorCode::internal, "{}: got an entry {}, wanted one of attention's", key, entry.name);
}

KernelFacts read_facts(jit::CuModule module, const std::string& key, const std::string& entry) {
  const std::string name = entry + "_facts";
  jit::CuAddress address = 0;
  size_t bytes = 0;
  check_driver(driver().module_get_global(&address, &bytes, module, name.c_str()), "cuModuleGetGlobal", kvloom::format("{} has no {}", key, name));
  KernelFacts facts{};
  if (bytes != sizeof facts) fail(ErrorCode::internal, "{}: {}: got {} bytes, wanted {}", key, name, bytes, sizeof facts);
  check_driver(driver().memcpy_dtoh(&facts, address, sizeof facts), "cuMemcpyDtoH", key);
  return facts;
}

AttendModule::Entry make_entry(jit::CuModule module, const std::string& key, const char* name, const KernelFacts& facts,
                               const GpuTarget& target) {
  const jit::Driver& d = driver();
  AttendModule::Entry e;
  check_driver(d.module_get_function(&e.function, module, name), "cuModuleGetFunction", key + ": " + name);
  e.threads = facts.threads;
  e.shared_bytes = facts.shared_bytes;
  e.cluster = facts.cluster;
  e.box_keys = facts.box_keys;
  e.tile_rows = facts.tile_rows;
  e.box_heads = facts.box_heads;
  e.fetch_bytes = facts.fetch_bytes;
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
  const std::vector<std::string> cubins = jit::cubins_of(unit.programs(), device.target().arch);
  const ContextGuard guard(device);
  AttendModule loaded;
  for (size_t i = 0; i < cubins.size(); ++i) {
    jit::CuModule module = nullptr;  // for the life of the process
    check_driver(driver().module_load_data(&module, cubins[i].data()), "cuModuleLoadData",
                 unit.key);
    const jit::Unit::Entry& entry = unit.entries[i];
    const int at = index_of(entry, unit.key);
    loaded.entries[at] = make_entry(module, unit.key, entry.name.c_str(), read_facts(module, unit.key, entry.name), device.target());
  }
  if (loaded.entries[3].function == nullptr) loaded.entries[3] = loaded.entries[0];
  if (loaded.entries[1].function == nullptr) loaded.entries[1] = loaded.entries[loaded.entries[2].function != nullptr ? 2 : 0];
  if (loaded.entries[2].function == nullptr) loaded.entries[2] = loaded.entries[1];
  return loaded;
}

}  // namespace

const AttendModule& attend_module(const Device& device, const jit::Unit& unit) {
  static auto* const modules = new MadeOnce<AttendModule>;
  return modules->get(kvloom::format("{}\n{}", device.target().device, unit.whole()),
                      [&] { return std::make_unique<const AttendModule>(load(device, unit)); });
}

}  // namespace kvloom::runtime
