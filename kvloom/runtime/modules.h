// Compiled units in the memory of a device: loaded once a process and device, found again by every engine that runs the same key.
#pragma once

#include "kvloom/jit/unit.h"
#include "kvloom/runtime/device.h"

namespace kvloom::runtime {

/// The entries of an attention unit, by the classes of items that a step has.
struct AttendModule {
  struct Entry {
    jit::CuFunction function = nullptr;
    int32_t threads = 0;
    int32_t shared_bytes = 0;  // dynamic
    int32_t ctas_per_sm = 0;   // that really fit
    int32_t registers = 0;
    int32_t local_bytes = 0;  // a thread; above 0 it spills
  };
  static constexpr int kEntries = 4;
  Entry entries[kEntries];  // memory, compute, mixed, small: memory with the tiles that it has in mixed (if those are the same: memory)

  static constexpr const char* kNames[kEntries] = {"memory", "compute", "mixed", "small"};

  /// Of a step with these classes of items. `own_memory`: it was planned for attend_memory, if it is of the memory class alone.
  static constexpr int index_of(bool memory, bool compute, bool own_memory) {
    return memory && compute ? 2 : compute ? 1 : own_memory ? 0 : 3;
  }
};

/// Compiles (or finds in the cache) and loads `unit`. Safe from any thread; the first of them works, the rest wait.
/// Errors: those of jit::cubin_of; internal where a unit does not hold what the runtime expects.
const AttendModule& attend_module(const Device& device, const jit::Unit& unit);

}  // namespace kvloom::runtime
