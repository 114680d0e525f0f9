// The policies as the command line spells them.
#pragma once

#include "kvloom/contract/plan_format.h"

#include <string>

namespace kvloom::cli {

/// "none, heap, ..": all names, for help texts.
std::string policy_names();
/// Another name is a wrong command line: throws CLI::ValidationError, which lists them.
Policy parse_policy(const std::string& name);

}  // namespace kvloom::cli
