// The C boundary of steps that the device plans.
#include "kvloom/api/c_handles.h"
#include "kvloom/api/kvloom_device_plan.h"

using kvloom::api::guarded;
using kvloom::api::require_pointer;

extern "C" {

kvloom_status kvloom_plan_device_create(kvloom_engine* engine, const kvloom_device_batch* batch, void* stream, kvloom_plan** plan) {
  return guarded([&] {
    require_pointer(engine, "kvloom_plan_device_create", "engine");
    require_pointer(plan, "kvloom_plan_device_create", "plan");
    const kvloom::DeviceBatch step = kvloom::api::device_batch_of(batch, "kvloom_plan_device_create");
    *plan = new kvloom_plan{engine->engine.plan_on_device(step, stream)};
  });
}

kvloom_status kvloom_plan_device_update(kvloom_engine* engine, kvloom_plan* plan, const kvloom_device_batch* batch, void* stream) {
  return guarded([&] {
    require_pointer(engine, "kvloom_plan_device_update", "engine");
    require_pointer(plan, "kvloom_plan_device_update", "plan");
    engine->engine.replan_on_device(plan->plan, kvloom::api::device_batch_of(batch, "kvloom_plan_device_update"), stream);
  });
}

kvloom_status kvloom_plan_check(kvloom_engine* engine, kvloom_plan* plan, void* stream) {
  return guarded([&] {
    require_pointer(engine, "kvloom_plan_check", "engine");
    require_pointer(plan, "kvloom_plan_check", "plan");
    engine->engine.check(plan->plan, stream);
  });
}

}  // extern "C"
