// Defaults of the C structs: those of the C++ ones, one place for both.
#include "kvloom/api/c_convert.h"

#include <string_view>

namespace {

#define KVLOOM_TEXT(x) #x
#define KVLOOM_TEXT_OF(x) KVLOOM_TEXT(x)
constexpr const char* kVersion =
    KVLOOM_TEXT_OF(KVLOOM_VERSION_MAJOR) "." KVLOOM_TEXT_OF(KVLOOM_VERSION_MINOR) "." KVLOOM_TEXT_OF(KVLOOM_VERSION_PATCH);
static_assert(std::string_view(kVersion) == KVLOOM_PROJECT_VERSION, "kvloom.h and CMakeLists.txt disagree on the version");

/// Fills the first `struct_size` bytes of the caller's struct: fields of a newer header become zero, those of an older one are left off.
template <class T>
void fill(T* to, size_t struct_size, T defaults) {
  if (to == nullptr) return;
  defaults.struct_size = static_cast<uint32_t>(struct_size);
  if (struct_size > sizeof defaults) std::memset(to, 0, struct_size);
  std::memcpy(to, &defaults, struct_size < sizeof defaults ? struct_size : sizeof defaults);
}

}  // namespace

extern "C" {

void kvloom_rope_init(kvloom_rope* rope, size_t struct_size) {
  const kvloom::RopeSpec d;
  fill(rope, struct_size,
       kvloom_rope{0, KVLOOM_ROPE_NONE, d.rotary_dim, d.theta, d.scaling, d.low_freq_factor, d.high_freq_factor, d.original_context});
}

void kvloom_spec_init(kvloom_spec* spec, size_t struct_size) {
  const kvloom::AttentionSpec d;
  kvloom_spec s{};
  s.q_dtype = s.kv_dtype = s.o_dtype = KVLOOM_F32;
  s.storage = static_cast<int32_t>(d.storage);
  s.page_size = d.page_size;
  s.window_left = d.variant.range.left;
  s.window_right = d.variant.range.right;
  fill(spec, struct_size, s);
}

void kvloom_capacity_init(kvloom_capacity* capacity, size_t struct_size) { fill(capacity, struct_size, kvloom_capacity{}); }

void kvloom_options_init(kvloom_options* options, size_t struct_size) {
  const kvloom::EngineOptions d;
  kvloom_options o{};
  o.policy = static_cast<int32_t>(d.policy);
  o.levels = static_cast<int32_t>(d.levels);
  o.check_pages = d.check_pages;
  o.device = d.device;
  o.check_pointers = d.check_pointers;
  o.early_launch = d.early_launch;
  fill(options, struct_size, o);
}

void kvloom_batch_init(kvloom_batch* batch, size_t struct_size) { fill(batch, struct_size, kvloom_batch{}); }
void kvloom_device_batch_init(kvloom_device_batch* batch, size_t struct_size) { fill(batch, struct_size, kvloom_device_batch{}); }
void kvloom_run_tensors_init(kvloom_run_tensors* tensors, size_t struct_size) { fill(tensors, struct_size, kvloom_run_tensors{}); }
void kvloom_append_batch_init(kvloom_append_batch* batch, size_t struct_size) { fill(batch, struct_size, kvloom_append_batch{}); }

void kvloom_op_options_init(kvloom_op_options* options, size_t struct_size) {
  fill(options, struct_size, kvloom_op_options{0, 0, kvloom::OpOptions().device, kvloom::OpOptions().check_pointers, nullptr});
}

void kvloom_scales_init(kvloom_scales* scales, size_t struct_size) {
  fill(scales, struct_size, kvloom_scales{0, 1.0f, 1.0f, 1.0f, nullptr, nullptr});
}

void kvloom_tensor_init(kvloom_tensor* t, void* data, int32_t dtype, int32_t ndim, const int64_t* shape) {
  if (t == nullptr) return;
  constexpr uint8_t codes[] = {2, 2, 4, 10, 12}, bits[] = {32, 16, 16, 8, 8};
  const bool known = dtype >= 0 && dtype < 5;
  *t = kvloom_tensor{data, 1, 0, ndim, known ? codes[dtype] : uint8_t(255), known ? bits[dtype] : uint8_t(0), 1, shape, nullptr, 0};
}

const char* kvloom_status_name(kvloom_status status) {
  switch (status) {
    case KVLOOM_OK:
      return "ok";
    case KVLOOM_INVALID_ARGUMENT:
      return "invalid argument";
    case KVLOOM_OVER_CAPACITY:
      return "over capacity";
    case KVLOOM_UNSUPPORTED:
      return "unsupported";
    case KVLOOM_OUT_OF_MEMORY:
      return "out of memory";
    case KVLOOM_IO:
      return "input or output";
    case KVLOOM_MISMATCH:
      return "mismatch";
    case KVLOOM_INTERNAL:
      return "internal";
    default:
      return "unknown status";
  }
}

const char* kvloom_version(void) { return kVersion; }
int32_t kvloom_abi(void) { return KVLOOM_ABI; }

}  // extern "C"
