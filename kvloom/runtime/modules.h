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
    int32_t cluster = 1, box_keys = 0, tile_rows = 0, box_heads = 1, fetch_bytes = 256;  // contract/unit_facts.h
    int32_t registers = 0;
    int32_t local_bytes = 0;  // a thread; above 0 it spills
  };
  static constexpr int kEntries = 5, kMemory32 = 4;
  /// memory; compute (if the unit has none: mixed, or memory, which is then all it has); mixed (or compute); small: memory with the tiles that it has in mixed,
  /// or compute where rows are fetched one by one (or memory); memory_32: memory with tiles of 32 rows (or none).
  Entry entries[kEntries];
  static constexpr const char* kNames[kEntries] = {"memory", "compute", "mixed", "small", "memory_32"};

  /// Of a step with these classes of items, and with levels or without, that was not planned for attend_memory_32. `own_memory`, `own_compute`: it was
  /// planned for attend_memory (or attend_compute), if it is of that class alone. `small_computes`, `fetches_rows`: OwnSchedules. Where attend_small is
  /// for many rows, few rows with levels run attend_mixed, and without attend_memory whoever planned them: their graphs are the same.
  static constexpr int index_of(bool memory, bool compute, bool levels, bool own_memory, bool own_compute, bool small_computes, bool fetches_rows) {
    if (compute) return memory || !own_compute ? 2 : fetches_rows ? 3 : 1;
    if (small_computes) return levels ? 2 : 0;
    return own_memory ? 0 : 3;
  }
};

/// Compiles (or finds in the cache) and loads `unit`. Safe from any thread; the first of them works, the rest wait.
/// Errors: those of jit::cubin_of; internal where a unit does not hold what the runtime expects.
const AttendModule& attend_module(const Device& device, const jit::Unit& unit);

}  // namespace kvloom::runtime
