// What the fake driver runs in the place of kernels, by the names of their entries.
#pragma once

#include "kvloom/contract/spec.h"

#include <string>
#include <vector>

namespace kvloom::test {

/// A launch, with the arguments as they were when it was made.
struct KernelCall {
  void (*run)(const KernelCall&) = nullptr;
  std::string name;
  std::vector<char> argument;  // every kernel of ours takes one struct
  unsigned grid = 1, block = 1;  // attention: lists of items, of `cluster` CTAs each
  unsigned cluster = 1;
  AttentionSpec spec;  // attention: what it computes
  bool boxed = false;  // attention: of a family that takes BoxedAttendArgs

  template <class T>
  T as() const {
    return *reinterpret_cast<const T*>(argument.data());
  }
};

/// Runs attention instead of the CPU backend where it can; nullptr: there is nothing that could. lab/sm90 sets it.
extern bool (*emulate)(const KernelCall& call);

/// False if there is no such kernel.
bool find_kernel(const std::string& name, const void* argument, KernelCall& call);

}  // namespace kvloom::test
