// Cases as JSON: the table in tests/cases/cases.json, and a failing random case to look at. Keys are those of struct Case; what is left
// out has its default. tests/cases/README.md describes every key for readers in other languages.
#pragma once

#include "cli/check/case.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace kvloom::check {

/// Throws Error(invalid_argument) that names the case and the key: unknown key, wrong type, unknown word.
Case case_from_json(const nlohmann::ordered_json& j);
nlohmann::ordered_json case_to_json(const Case& c);

/// The cases of a file {"cases": [...]}. Throws Error(io) or Error(invalid_argument).
std::vector<Case> read_cases(const std::string& path);

}  // namespace kvloom::check
