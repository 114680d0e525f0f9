// The C boundary of engine.h: every function converts, calls, and returns a status. Nothing is decided here.
#include "kvloom/api/c_handles.h"

using kvloom::api::guarded;
using kvloom::api::require_pointer;

// The C names are the C++ numbers.
static_assert(KVLOOM_F32 == int(kvloom::DType::f32) && KVLOOM_F16 == int(kvloom::DType::f16) && KVLOOM_BF16 == int(kvloom::DType::bf16) &&
              KVLOOM_E4M3 == int(kvloom::DType::e4m3) && KVLOOM_E5M2 == int(kvloom::DType::e5m2));
static_assert(KVLOOM_RAGGED == int(kvloom::Storage::ragged) && KVLOOM_PAGED == int(kvloom::Storage::paged));
static_assert(KVLOOM_SOFTMAX == int(kvloom::Reduction::softmax) && KVLOOM_SUM == int(kvloom::Reduction::sum));
static_assert(KVLOOM_ROPE_INTERLEAVED == int(kvloom::RopeMode::interleaved) && KVLOOM_ROPE_HALF_SPLIT == int(kvloom::RopeMode::half_split));
static_assert(KVLOOM_NO_SPLIT == int(kvloom::Policy::none) && KVLOOM_HEAP == int(kvloom::Policy::heap) &&
              KVLOOM_STREAM == int(kvloom::Policy::stream) && KVLOOM_FILL == int(kvloom::Policy::fill) &&
              KVLOOM_FIXED_SPLIT == int(kvloom::Policy::fixed_split) && KVLOOM_AUTOMATIC == int(kvloom::Policy::automatic));
static_assert(KVLOOM_LEVELS_OFF == int(kvloom::LevelMode::off) && KVLOOM_LEVELS_AUTOMATIC == int(kvloom::LevelMode::automatic));
static_assert(KVLOOM_POSITION_PAGE_TABLE == int(kvloom::KvPosition::page_table) &&
              KVLOOM_POSITION_PAGE_ID == int(kvloom::KvPosition::page_id));
static_assert(KVLOOM_NHD == int(kvloom::KvLayout::nhd) && KVLOOM_HND == int(kvloom::KvLayout::hnd) &&
              KVLOOM_CPU == int(kvloom::Backend::cpu) && KVLOOM_CUDA == int(kvloom::Backend::cuda) &&
              KVLOOM_AUTO == int(kvloom::Backend::automatic));
static_assert(KVLOOM_INVALID_ARGUMENT == int(kvloom::ErrorCode::invalid_argument) &&
              KVLOOM_OVER_CAPACITY == int(kvloom::ErrorCode::over_capacity) && KVLOOM_UNSUPPORTED == int(kvloom::ErrorCode::unsupported) &&
              KVLOOM_OUT_OF_MEMORY == int(kvloom::ErrorCode::out_of_memory) && KVLOOM_IO == int(kvloom::ErrorCode::io) &&
              KVLOOM_MISMATCH == int(kvloom::ErrorCode::mismatch) && KVLOOM_INTERNAL == int(kvloom::ErrorCode::internal));

extern "C" {

kvloom_status kvloom_workspace_size(const kvloom_spec* spec, const kvloom_capacity* capacity, const kvloom_options* options,
                                    int64_t* bytes) {
  return guarded([&] {
    require_pointer(bytes, "kvloom_workspace_size", "bytes");
    *bytes =
        kvloom::Engine::workspace_size(kvloom::api::spec_of(spec), kvloom::api::capacity_of(capacity), kvloom::api::options_of(options));
  });
}

kvloom_status kvloom_engine_create(const kvloom_spec* spec, const kvloom_capacity* capacity, const kvloom_options* options, void* workspace,
                                   int64_t workspace_bytes, kvloom_engine** engine) {
  return guarded([&] {
    require_pointer(engine, "kvloom_engine_create", "engine");
    *engine = new kvloom_engine{kvloom::Engine(kvloom::api::spec_of(spec), kvloom::api::capacity_of(capacity),
                                               kvloom::api::options_of(options), {workspace, workspace_bytes}),
                                {}};
  });
}

void kvloom_engine_destroy(kvloom_engine* engine) { delete engine; }

const char* kvloom_engine_kernel_key(const kvloom_engine* engine) { return engine ? engine->engine.kernel_key().c_str() : nullptr; }

int32_t kvloom_engine_backend(const kvloom_engine* engine) { return engine ? static_cast<int32_t>(engine->engine.backend()) : -1; }
int32_t kvloom_engine_device(const kvloom_engine* engine) { return engine ? engine->engine.device() : -1; }

kvloom_status kvloom_engine_explain(const kvloom_engine* engine, char** text) {
  return guarded([&] {
    require_pointer(engine, "kvloom_engine_explain", "engine");
    require_pointer(text, "kvloom_engine_explain", "text");
    *text = kvloom::api::string_for_caller(engine->engine.explain());
  });
}

kvloom_status kvloom_plan_create(kvloom_engine* engine, const kvloom_batch* batch, kvloom_plan** plan) {
  return guarded([&] {
    require_pointer(engine, "kvloom_plan_create", "engine");
    require_pointer(plan, "kvloom_plan_create", "plan");
    kvloom::api::batch_of(batch, engine->batch, "kvloom_plan_create");
    *plan = new kvloom_plan{engine->engine.plan(engine->batch.batch)};
  });
}

kvloom_status kvloom_plan_update(kvloom_engine* engine, kvloom_plan* plan, const kvloom_batch* batch) {
  return guarded([&] {
    require_pointer(engine, "kvloom_plan_update", "engine");
    require_pointer(plan, "kvloom_plan_update", "plan");
    kvloom::api::batch_of(batch, engine->batch, "kvloom_plan_update");
    engine->engine.replan(plan->plan, engine->batch.batch);
  });
}

kvloom_status kvloom_plan_upload(kvloom_engine* engine, kvloom_plan* plan, void* stream) {
  return guarded([&] {
    require_pointer(engine, "kvloom_plan_upload", "engine");
    require_pointer(plan, "kvloom_plan_upload", "plan");
    engine->engine.upload(plan->plan, stream);
  });
}

void kvloom_plan_destroy(kvloom_plan* plan) { delete plan; }

kvloom_status kvloom_plan_bytes(const kvloom_plan* plan, const void** data, int64_t* size) {
  return guarded([&] {
    require_pointer(plan, "kvloom_plan_bytes", "plan");
    require_pointer(data, "kvloom_plan_bytes", "data");
    require_pointer(size, "kvloom_plan_bytes", "size");
    const kvloom::Span<const char> bytes = plan->plan.bytes();
    *data = bytes.data;
    *size = bytes.size;
  });
}

kvloom_status kvloom_plan_graph_key(const kvloom_plan* plan, uint64_t* key) {
  return guarded([&] {
    require_pointer(plan, "kvloom_plan_graph_key", "plan");
    require_pointer(key, "kvloom_plan_graph_key", "key");
    *key = plan->plan.graph_key();
  });
}

void kvloom_string_free(char* string) { std::free(string); }

kvloom_status kvloom_run(kvloom_engine* engine, const kvloom_plan* plan, const kvloom_run_tensors* tensors, void* stream) {
  return guarded([&] {
    require_pointer(engine, "kvloom_run", "engine");
    require_pointer(plan, "kvloom_run", "plan");
    kvloom::api::run_tensors_of(tensors, engine->run, "kvloom_run");
    engine->engine.run(plan->plan, engine->run.tensors, stream);
  });
}

kvloom_status kvloom_attention(const kvloom_spec* spec, const kvloom_batch* batch, const kvloom_run_tensors* tensors,
                               const kvloom_options* options) {
  return guarded([&] {
    kvloom::api::BatchCopy copy;
    kvloom::api::batch_of(batch, copy, "kvloom_attention");
    kvloom::api::RunCopy run;
    kvloom::api::run_tensors_of(tensors, run, "kvloom_attention");
    kvloom::attention(kvloom::api::spec_of(spec), copy.batch, run.tensors, kvloom::api::options_of(options));
  });
}

}  // extern "C"
