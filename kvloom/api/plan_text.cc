#include "kvloom/api/plan_state.h"
#include "kvloom/plan/describe.h"
#include "kvloom/support/check.h"

namespace kvloom {

std::string Plan::explain() const {
  const api::PlanState& s = state();
  std::string text = kvloom::format("kernel {}\n", s.kernel_key);
  if (s.entry != nullptr) text += kvloom::format("launch attend_{}\n", s.entry);
  text += plan::describe_text(s.view(), s.spec);
  if (!s.notes.empty()) text += kvloom::format("{}{}\n", text.ends_with('\n') ? "" : "\n", s.notes);
  return text;
}
std::string Plan::json() const { return plan::describe_json(view(), state().spec); }
std::string Plan::svg() const { return plan::describe_svg(view(), state().spec); }

}  // namespace kvloom
