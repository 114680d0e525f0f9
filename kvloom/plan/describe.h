// A plan for people: text, JSON (nlohmann-free text, stable key order) and an SVG picture with a lane a CTA.
#pragma once

#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"

#include <string>

namespace kvloom::plan {

std::string describe_text(const PlanView& plan, const AttentionSpec& spec);
std::string describe_json(const PlanView& plan, const AttentionSpec& spec);
/// Colour is a request, x is cost, splits carry an open edge, merges are drawn at the CTA of the unit's last entry.
std::string describe_svg(const PlanView& plan, const AttentionSpec& spec);

/// The cost that the planner gave an item, in the units of SchedulerConfig: what loads and balance are computed from.
uint64_t item_cost(const PlanView& plan, const WorkItem& item);

}  // namespace kvloom::plan
