// The C boundary of plan_text.cc.
#include "kvloom/api/c_handles.h"

using kvloom::api::guarded;
using kvloom::api::require_pointer;

extern "C" {

kvloom_status kvloom_plan_explain(const kvloom_plan* plan, char** text) {
  return guarded([&] {
    require_pointer(plan, "kvloom_plan_explain", "plan");
    require_pointer(text, "kvloom_plan_explain", "text");
    *text = kvloom::api::string_for_caller(plan->plan.explain());
  });
}

kvloom_status kvloom_plan_json(const kvloom_plan* plan, char** json) {
  return guarded([&] {
    require_pointer(plan, "kvloom_plan_json", "plan");
    require_pointer(json, "kvloom_plan_json", "json");
    *json = kvloom::api::string_for_caller(plan->plan.json());
  });
}

kvloom_status kvloom_plan_svg(const kvloom_plan* plan, char** svg) {
  return guarded([&] {
    require_pointer(plan, "kvloom_plan_svg", "plan");
    require_pointer(svg, "kvloom_plan_svg", "svg");
    *svg = kvloom::api::string_for_caller(plan->plan.svg());
  });
}

}  // extern "C"
