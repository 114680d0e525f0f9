// The CPU's part of users' variants: compiled by the host's compiler, or found in the cache; loaded once a process.
#pragma once

#include "kvloom/jit/host_unit.h"

namespace kvloom::jit {

/// The loaded shared object of a unit. Never unloaded.
struct HostVariant {
  UserVariant facts;        // name, hooks, parameters; file, text and digest are the caller's to add
  void (*stage)(void* to);  // fills the cpu room's UserStage
};

/// Errors: unsupported (no compiler, or KVLOOM_NO_JIT=1 and not in the cache), invalid_argument (it does not compile: the compiler's words,
/// which name `file` and its lines), io (it can't be loaded).
const HostVariant& host_variant(const Program& unit, const HostTarget& target);

}  // namespace kvloom::jit
