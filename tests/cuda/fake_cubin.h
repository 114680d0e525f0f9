// What the fake driver takes for a cubin: it says which attention the "kernel" computes.
#pragma once

#include "kvloom/contract/spec.h"
#include "kvloom/contract/unit_facts.h"

#include <cstring>
#include <string>

namespace kvloom::test {

struct FakeCubin {
  char magic[8] = {'F', 'A', 'K', 'E', 'C', 'U', 'B', '1'};
  AttentionSpec spec;
  KernelFacts memory = {128, 70000, 3}, compute = {128, 100000, 2}, mixed = compute, small = {128, 90000, 2}, memory_32 = {128, 100000, 2};

  std::string bytes() const { return std::string(reinterpret_cast<const char*>(this), sizeof *this); }
};

/// What tests ask of it, by dlsym.
struct FakeControls {
  void (*reset)() = nullptr;                       // counts and limits
  long long (*count)(const char* what) = nullptr;  // calls: "cuLaunchKernelEx", ...
  void (*set_free_bytes)(long long bytes) = nullptr;
  void (*set_occupancy)(int ctas) = nullptr;
  void (*set_spec)(const AttentionSpec* spec) = nullptr;  // what every kernel computes from now on; nullptr: what its cubin says
  const char* (*last_entry)() = nullptr;                  // name of the kernel launched last
  int (*last_early)() = nullptr;                          // with programmatic stream serialization
};

}  // namespace kvloom::test
