#include "kvloom/runtime/modules.h"

#include "kvloom/jit/compile.h"
#include "kvloom/support/check.h"

#include <map>
#include <memory>
#include <mutex>

namespace kvloom::runtime {
namespace {

using jit::check_driver;
using jit::driver;

constexpr const char* kEntryNames[3] = {"attend_memory", "attend_compute", "attend_mixed"};
constexpr int kFactsAnEntry = 3;  // threads, dynamic shared bytes, CTAs an SM aimed at

void read_facts(jit::CuModule module, const std::string& key, int32_t (&facts)[16]) {
  jit::CuAddress address = 0;
  size_t bytes = 0;
  check_driver(driver().module_get_global(&address, &bytes, module, "kvloom_facts"), "cuModuleGetGlobal", key + " has no kvloom_facts");
  if (bytes < sizeof facts) fail(ErrorCode::internal, "{}: kvloom_facts: got {} bytes, wanted {}", key, bytes, sizeof facts);
  check_driver(driver().memcpy_dtoh(facts, address, sizeof facts), "cuMemcpyDtoH", key);
}

AttendModule::Entry make_entry(jit::CuModule module, const std::string& key, const char* name, const int32_t* facts,
                               const GpuTarget& target) {
  const jit::Driver& d = driver();
  AttendModule::Entry e;
  check_driver(d.module_get_function(&e.function, module, name), "cuModuleGetFunction", key + ": " + name);
  e.threads = facts[0];
  e.shared_bytes = facts[1];
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
  if (facts[2] > 0 && facts[2] < e.ctas_per_sm) e.ctas_per_sm = facts[2];
  return e;
}

AttendModule load(const Device& device, const jit::Unit& unit) {
  const std::string cubin = jit::cubin_of(unit, device.target().arch);
  const ContextGuard guard(device);
  jit::CuModule module = nullptr;  // for the life of the process
  check_driver(driver().module_load_data(&module, cubin.data()), "cuModuleLoadData",
               unit.key + "; it can't be loaded while a stream of this thread is being captured");
  int32_t facts[16] = {};
  read_facts(module, unit.key, facts);
  AttendModule loaded;
  for (int i = 0; i < 3; ++i) loaded.entries[i] = make_entry(module, unit.key, kEntryNames[i], facts + i * kFactsAnEntry, device.target());
  const int32_t small[kFactsAnEntry] = {facts[kFactsAnEntry], facts[14], facts[15]};
  loaded.entries[3] = small[1] > 0 ? make_entry(module, unit.key, "attend_small", small, device.target()) : loaded.entries[0];
  return loaded;
}

/// One unit on one device. Its own lock: threads that want other units do not wait for this one's compiler.
struct Slot {
  std::mutex mutex;
  std::unique_ptr<const AttendModule> module;
};

Slot& slot_of(const Device& device, const jit::Unit& unit) {
  static std::mutex mutex;
  static auto* const slots = new std::map<std::pair<int32_t, std::string>, std::unique_ptr<Slot>>;
  std::lock_guard lock(mutex);
  std::unique_ptr<Slot>& slot = (*slots)[{device.target().device, unit.text}];
  if (!slot) slot = std::make_unique<Slot>();
  return *slot;
}

}  // namespace

const AttendModule& attend_module(const Device& device, const jit::Unit& unit) {
  Slot& slot = slot_of(device, unit);
  std::lock_guard lock(slot.mutex);
  if (!slot.module) slot.module = std::make_unique<const AttendModule>(load(device, unit));
  return *slot.module;
}

}  // namespace kvloom::runtime
