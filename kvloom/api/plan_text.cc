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

}  // namespace

std::string Plan::explain() const {
  const api::PlanState& s = state();
  std::string text = kvloom::format("kernel {}\n", s.kernel_key);
  if (s.entry != nullptr) text += kvloom::format("launch attend_{}\n", s.entry);
  text += plan::describe_text(OwnView(s.view(), graph_key()).view, s.spec);
  if (!s.notes.empty()) text += kvloom::format("{}{}\n", text.ends_with('\n') ? "" : "\n", s.notes);
  return text;
}
std::string Plan::json() const { return plan::describe_json(OwnView(view(), graph_key()).view, state().spec); }
std::string Plan::svg() const { return plan::describe_svg(view(), state().spec); }

}  // namespace kvloom
