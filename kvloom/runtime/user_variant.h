// Users' variants: from a text to what engines need of it.
#pragma once

#include "kvloom/contract/user_variant.h"
#include "kvloom/cpu/chunk.h"

#include <string>

namespace kvloom::runtime {

/// The variant that `text` defines, compiled for the CPU of this machine first, so that what is wrong is said with its line. The same text
/// is compiled once a process, and the same object is given again. `file`: its name in messages. Throws as jit::host_variant;
/// invalid_argument for a text that names no struct.
const UserVariant* user_variant(const std::string& text, const std::string& file);

/// The CPU's score stage of a spec with a user's variant, for one target. Safe from any thread.
cpu::UserStage user_stage(const VariantSpec& variant, cpu::Target target);

}  // namespace kvloom::runtime
