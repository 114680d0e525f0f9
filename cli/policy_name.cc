#include "cli/policy_name.h"

#include <CLI/CLI.hpp>

namespace kvloom::cli {

std::string policy_names() {
  std::string names;
  for (int32_t p = 0; p < kNumPolicies; ++p) names.append(names.empty() ? "" : ", ").append(name_of(Policy(p)));
  return names;
}

Policy parse_policy(const std::string& name) {
  for (int32_t p = 0; p < kNumPolicies; ++p) {
    if (name == name_of(Policy(p))) return Policy(p);
  }
  throw CLI::ValidationError("--policy", "got '" + name + "', wanted one of " + policy_names());
}

}  // namespace kvloom::cli
