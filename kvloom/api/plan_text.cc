#include "kvloom/api/plan_state.h"
#include "kvloom/plan/describe.h"
#include "kvloom/support/check.h"

namespace kvloom {
namespace {

/// A plan as the engine that runs it knows it: what a captured graph must match has the kernel in it.
struct OwnView {
  PlanHeader header;
  PlanView view;

  OwnView(const PlanView& plan, uint64_t graph_key) : header(*plan.header), view(plan) {
    header.graph_key = graph_key;
    view.header = &header;
  }
};

/// Of which class a launch has items: what its name stands for in this step.
const char* items_of(const PlanView& plan) {
  bool of_class[2] = {false, false};
  for (const WorkItem& item : plan.items) of_class[item.kernel_class & 1] = true;
  if (of_class[0] && of_class[1]) return "items of few rows and of many";
  if (of_class[1]) return "items of many rows";
  return of_class[0] ? plan.header->num_levels > 1 ? "items of few rows, in levels" : "items of few rows" : "no items";
}

/// A text as a string of JSON. There are no control characters in ours.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

}  // namespace

std::string Plan::explain() const {
  const api::PlanState& s = state();
  std::string text = kvloom::format("kernel {}\n", s.kernel_key);
  if (s.entry != nullptr) text += kvloom::format("launch attend_{}: {}\n", s.entry, items_of(s.view()));
  text += plan::describe_text(OwnView(s.view(), graph_key()).view, s.spec);
  if (!s.notes.empty()) text += kvloom::format("{}{}\n", text.ends_with('\n') ? "" : "\n", s.notes);
  return text;
}
std::string Plan::json() const {
  const api::PlanState& s = state();
  const std::string launch = s.entry != nullptr ? quoted(kvloom::format("attend_{}", s.entry)) : "null", notes = s.notes.empty() ? "null" : quoted(s.notes);
  // What explain() says besides the plan itself comes first.
  return kvloom::format("{{\n  \"kernel\": {},\n  \"launch\": {},\n  \"notes\": {},{}", quoted(s.kernel_key), launch, notes,
                        plan::describe_json(OwnView(view(), graph_key()).view, s.spec).substr(1));
}
std::string Plan::svg() const { return plan::describe_svg(view(), state().spec); }

}  // namespace kvloom
