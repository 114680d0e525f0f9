// What of the input space a set of cases has touched: a check that never drew an empty request or a page of 17 has not checked them.
#pragma once

#include "cli/check/case.h"

#include <string>
#include <vector>

namespace kvloom::check {

/// Words like "storage.ragged", "page_size.17", "variant.sink", "length.kv_zero": everything about the case that a kernel or planner may
/// treat in its own way.
std::vector<std::string> features_of(const Case& c);

/// Every word that random cases must reach.
std::vector<std::string> all_features();

}  // namespace kvloom::check
