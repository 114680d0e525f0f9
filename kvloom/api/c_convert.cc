#include "kvloom/api/c_convert.h"

#include "kvloom/api/tensor_check.h"
#include "kvloom/support/check.h"
#include "kvloom/support/format.h"

#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <string>

namespace kvloom::api {
namespace {

// kvloom_tensor is a DLTensor: DLPack's published layout on 64-bit machines.
static_assert(sizeof(kvloom_tensor) == 48 && offsetof(kvloom_tensor, data) == 0 && offsetof(kvloom_tensor, device_type) == 8 &&
              offsetof(kvloom_tensor, device_id) == 12 && offsetof(kvloom_tensor, ndim) == 16 &&
              offsetof(kvloom_tensor, dtype_code) == 20 && offsetof(kvloom_tensor, dtype_bits) == 21 &&
              offsetof(kvloom_tensor, dtype_lanes) == 22 && offsetof(kvloom_tensor, shape) == 24 &&
              offsetof(kvloom_tensor, strides) == 32 && offsetof(kvloom_tensor, byte_offset) == 40);

constexpr size_t kMaxStruct = 4096;  // no struct of the header will ever be this long: a larger size is garbage

thread_local std::string last_error;
thread_local const char* last_error_shown = "";

/// DLPack's (code, bits) of each DType.
struct DlType {
  uint8_t code, bits;
};
constexpr DlType kDlTypes[kNumDTypes] = {{2, 32}, {2, 16}, {4, 16}, {10, 8}, {12, 8}};

/// DLPack's type in words: "float64", "int16", "uint8", or its numbers.
std::string words_of_type(const kvloom_tensor& t) {
  constexpr const char* kKinds[] = {"int", "uint", "float", nullptr, "bfloat", "complex", "bool"};
  const char* const kind = t.dtype_lanes == 1 && t.dtype_code < std::size(kKinds) ? kKinds[t.dtype_code] : nullptr;
  if (kind == nullptr) return kvloom::format("DLPack code {}, {} bits, {} lanes", t.dtype_code, t.dtype_bits, t.dtype_lanes);
  return t.dtype_code == 6 ? kind : kvloom::format("{}{}", kind, t.dtype_bits);
}

DType dtype_of(const kvloom_tensor& t, const char* function, const char* name) {
  for (int32_t d = 0; d < kNumDTypes; ++d) {
    if (t.dtype_code == kDlTypes[d].code && t.dtype_bits == kDlTypes[d].bits && t.dtype_lanes == 1) return DType(d);
  }
  fail(ErrorCode::invalid_argument,
       "{}: {}: dtype: got {}, wanted float32, float16, bfloat16, float8_e4m3fn or float8_e5m2", function, name, words_of_type(t));
}

/// An 8-bit enum from an int32 field; numbers that name nothing stay so, and are refused by the checks of the value.
template <class E>
E enum_of(int32_t value) {
  return static_cast<E>(value < 0 || value > 255 ? 255 : value);
}

/// sizeof T in the first release of this ABI: what every caller has. A struct that grows gets its old size here.
template <class T>
constexpr size_t kFirstSize = sizeof(T);
template <>
constexpr size_t kFirstSize<kvloom_options> = offsetof(kvloom_options, device);  // before there was a GPU
template <>
constexpr size_t kFirstSize<kvloom_spec> = offsetof(kvloom_spec, variant_text);  // before users' variants
template <>
constexpr size_t kFirstSize<kvloom_run_tensors> = offsetof(kvloom_run_tensors, params);

/// Copies the caller's struct over the defaults that `to` holds.
void read_over(const void* from, void* to, size_t our_size, size_t first_size, size_t align, const char* type) {
  uint32_t size;
  std::memcpy(&size, from, sizeof size);
  require(size >= first_size && size <= kMaxStruct && size % align == 0,
          "{}: struct_size: got {}, wanted sizeof({}), {} in this library; call "
          "{}_init first",
          type, size, type, our_size, type);
  const auto* bytes = static_cast<const unsigned char*>(from);
  for (size_t i = our_size; i < size; ++i) {
    if (bytes[i] != 0) {
      fail(ErrorCode::unsupported,
           "{}: got a field that this library ({}) does not know, set by a newer header, wanted it zero; update the library", type,
           kvloom_version());
    }
  }
  std::memcpy(to, from, size < our_size ? size : our_size);
}

void set_defaults(kvloom_rope& s) { kvloom_rope_init(&s, sizeof s); }
void set_defaults(kvloom_scales& s) { kvloom_scales_init(&s, sizeof s); }
void set_defaults(kvloom_spec& s) { kvloom_spec_init(&s, sizeof s); }
void set_defaults(kvloom_capacity& s) { kvloom_capacity_init(&s, sizeof s); }
void set_defaults(kvloom_options& s) { kvloom_options_init(&s, sizeof s); }
void set_defaults(kvloom_batch& s) { kvloom_batch_init(&s, sizeof s); }
void set_defaults(kvloom_device_batch& s) { kvloom_device_batch_init(&s, sizeof s); }
void set_defaults(kvloom_run_tensors& s) { kvloom_run_tensors_init(&s, sizeof s); }
void set_defaults(kvloom_append_batch& s) { kvloom_append_batch_init(&s, sizeof s); }
void set_defaults(kvloom_op_options& s) { kvloom_op_options_init(&s, sizeof s); }

template <class T>
T read_struct(const T* from, const char* type) {
  require(from != nullptr, "{}: got a null pointer, wanted a struct filled by {}_init", type, type);
  T to;
  set_defaults(to);
  read_over(from, &to, sizeof to, kFirstSize<T>, alignof(T), type);
  return to;
}

VariantParam param_of(const kvloom_param& p) {
  require_pointer(p.name, "run: params", "name");
  if (p.tensor == nullptr) return VariantParam(p.name, p.number);
  const kvloom_tensor& t = *p.tensor;
  constexpr DlType kTypes[] = {{2, 32}, {0, 32}, {0, 64}, {1, 8}};  // DLPack's, of each ParamType
  int32_t type = 0;
  while (type < 4 && !(t.dtype_code == kTypes[type].code && t.dtype_bits == kTypes[type].bits && t.dtype_lanes == 1)) ++type;
  require(type < 4, "run: params: {}: dtype: got {}, wanted float32, int32, int64 or uint8", p.name, words_of_type(t));
  require(t.ndim >= 1 && t.ndim <= kMaxParamDims, "run: params: {}: ndim: got {}, wanted 1 .. {}", p.name, t.ndim, kMaxParamDims);
  require_pointer(t.shape, p.name, "shape");
  VariantParam out(p.name, ParamType(type), t.data == nullptr ? nullptr : static_cast<char*>(t.data) + t.byte_offset, {});
  out.ndim = t.ndim;
  int64_t step = 1;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    out.shape[d] = t.shape[d];
    out.stride[d] = t.strides != nullptr ? t.strides[d] : step;
    step = out.shape[d] > 0 && out.shape[d] <= INT32_MAX && step <= INT32_MAX ? step * out.shape[d] : step;  // others are refused later
  }
  return out;
}

}  // namespace

kvloom_status set_last_error(kvloom_status status, const char* message) noexcept {
  try {
    last_error = message != nullptr ? message : "out of memory";
    last_error_shown = last_error.c_str();
  } catch (...) {
    last_error_shown = "out of memory, and none left for the message";
  }
  return status;
}

kvloom_status status_of_exception() noexcept {
  try {
    throw;
  } catch (const Error& e) {
    return set_last_error(static_cast<kvloom_status>(e.code()), e.what());
  } catch (const std::bad_alloc&) {
    return set_last_error(KVLOOM_OUT_OF_MEMORY, nullptr);
  } catch (const std::exception& e) {
    return set_last_error(KVLOOM_INTERNAL, e.what());
  } catch (...) {
    return set_last_error(KVLOOM_INTERNAL, "an exception of an unknown type");
  }
}

void require_pointer(const void* p, const char* function, const char* name) {
  require(p != nullptr, "{}: {}: got a null pointer, wanted an address", function, name);
}

Tensor tensor_of(const kvloom_tensor* t, const char* function, const char* name, bool host_only) {
  if (t == nullptr) return {};
  const int32_t place = t->device_type;
  require(place == kDlCpu || place == kDlPinned || place == kDlCuda || place == kDlManaged,
          "{}: {}: device_type: got {}, wanted 1 (CPU), 2 (CUDA), 3 (pinned host memory) or 13 (managed)", function, name, place);
  require(!host_only || place != kDlCuda,
          "{}: {}: device_type: got 2 (CUDA), wanted 1 (CPU) or 3 (pinned host memory); copy the tensor to the host", function, name);
  require(t->ndim >= 1 && t->ndim <= 4, "{}: {}: ndim: got {}, wanted 1 .. 4", function, name, t->ndim);
  require(t->shape != nullptr, "{}: {}: shape: got a null pointer, wanted {} sizes", function, name, t->ndim);
  Tensor out;
  out.dtype = dtype_of(*t, function, name);
  out.data = t->data == nullptr ? nullptr : static_cast<char*>(t->data) + t->byte_offset;
  out.ndim = t->ndim;
  out.device_type = t->device_type;
  uint64_t stride = 1;  // unsigned: shapes that overflow are refused by the checks of shapes
  for (int32_t d = t->ndim - 1; d >= 0; --d) {
    out.shape[d] = t->shape[d];
    out.stride[d] = t->strides != nullptr ? t->strides[d] : static_cast<int64_t>(stride);
    stride *= t->shape[d] > 0 ? static_cast<uint64_t>(t->shape[d]) : 1;
  }
  return out;
}

IndexView indices_of(const kvloom_indices& i, const char* function, const char* name) {
  if (i.data == nullptr) {
    require(i.size == 0, "{}: {}: data: got a null pointer with {} entries, wanted an address", function, name, i.size);
    return {};
  }
  require(i.size >= 0, "{}: {}: size: got {}, wanted at least 0", function, name, i.size);
  require(i.bits == 32 || i.bits == 64, "{}: {}: bits: got {}, wanted 32 or 64", function, name, i.bits);
  if (i.bits == 32) return IndexView(static_cast<const int32_t*>(i.data), i.size);
  return IndexView(static_cast<const int64_t*>(i.data), i.size);
}

RopeSpec rope_of(const kvloom_rope* rope) {
  if (rope == nullptr) return {};
  const kvloom_rope r = read_struct(rope, "kvloom_rope");
  return {enum_of<RopeMode>(r.mode), r.rotary_dim, r.theta, r.scaling, r.low_freq_factor, r.high_freq_factor, r.original_context};
}

ScaleParams scales_of(const kvloom_scales* scales) {
  if (scales == nullptr) return {};
  const kvloom_scales s = read_struct(scales, "kvloom_scales");
  return {s.q, s.k, s.v, s.k_per_head, s.v_per_head};
}

AttentionSpec spec_of(const kvloom_spec* spec) {
  const kvloom_spec s = read_struct(spec, "kvloom_spec");
  AttentionSpec out;
  out.num_qo_heads = s.num_qo_heads;
  out.num_kv_heads = s.num_kv_heads;
  out.head_dim_qk = s.head_dim_qk;
  out.head_dim_vo = s.head_dim_vo;
  out.q_dtype = enum_of<DType>(s.q_dtype);
  out.kv_dtype = enum_of<DType>(s.kv_dtype);
  out.o_dtype = enum_of<DType>(s.o_dtype);
  out.storage = enum_of<Storage>(s.storage);
  out.page_size = s.page_size;
  out.sm_scale = s.sm_scale;
  out.variant.range = {s.causal != 0, s.window_left, s.window_right};
  out.variant.soft_cap = s.soft_cap;
  out.variant.alibi = s.alibi != 0;
  out.variant.custom_mask = s.custom_mask != 0;
  out.variant.sink = s.sink != 0;
  out.variant.reduction = enum_of<Reduction>(s.reduction);
  out.variant.sigmoid_bias = s.sigmoid_bias;
  out.variant.rope = rope_of(s.rope);
  if (s.variant_text != nullptr) out.variant.user = variant_from_text(s.variant_text, s.variant_file != nullptr ? s.variant_file : "");
  if (s.variant_text == nullptr && s.variant_file != nullptr) out.variant.user = variant_from_file(s.variant_file);
  return out;
}

Capacity capacity_of(const kvloom_capacity* capacity) {
  const kvloom_capacity c = read_struct(capacity, "kvloom_capacity");
  return {c.max_requests, c.max_query_tokens, c.max_kv_tokens, c.max_level_rows, c.max_groups};
}

EngineOptions options_of(const kvloom_options* options) {
  if (options == nullptr) return {};
  const kvloom_options o = read_struct(options, "kvloom_options");
  EngineOptions out;
  out.backend = static_cast<Backend>(o.backend);
  out.threads = o.threads;
  out.num_ctas = o.num_ctas;
  out.policy = static_cast<Policy>(o.policy);
  out.levels = static_cast<LevelMode>(o.levels);
  out.split_tokens = o.split_tokens;
  out.cpu_target = o.cpu_target;
  out.device = o.device;
  out.cuda_arch = o.cuda_arch;
  out.kernel = o.kernel;
  out.check_pointers = o.check_pointers != 0;
  out.check_pages = o.check_pages != 0;
  out.early_launch = o.early_launch != 0;
  return out;
}

void run_tensors_of(const kvloom_run_tensors* tensors, RunCopy& to, const char* function) {
  const kvloom_run_tensors t = read_struct(tensors, "kvloom_run_tensors");
  RunTensors& out = to.tensors;
  out = {};
  out.q = tensor_of(t.q, function, "q", false);
  out.k = tensor_of(t.k, function, "k", false);
  out.v = tensor_of(t.v, function, "v", false);
  out.o = tensor_of(t.o, function, "o", false);
  out.lse = tensor_of(t.lse, function, "lse", false);
  out.layout = static_cast<KvLayout>(t.layout);
  out.pages = indices_of(t.pages, function, "pages");
  out.page_pos = t.page_pos;
  out.alibi_slopes = t.alibi_slopes;
  out.sink = t.sink;
  out.mask = t.mask;
  out.mask_indptr = t.mask_indptr;
  out.scale = scales_of(t.scale);
  out.bare_state = t.bare_state != 0;
  require(t.num_params >= 0 && (t.params != nullptr || t.num_params == 0), "run: params: got {} of them at {}, wanted an array and its length",
          t.num_params, t.params == nullptr ? "a null pointer" : "an address");
  to.params.clear();
  for (int64_t i = 0; i < t.num_params; ++i) to.params.push_back(param_of(t.params[i]));
  out.params = {to.params.data(), int64_t(to.params.size())};
}

AppendBatch append_batch_of(const kvloom_append_batch* batch, const char* function) {
  const kvloom_append_batch b = read_struct(batch, "kvloom_append_batch");
  return {b.num_tokens,
          b.request,
          b.pos,
          b.rope_pos,
          b.num_requests,
          indices_of(b.list_indptr, function, "list_indptr"),
          indices_of(b.pages, function, "pages"),
          b.table_stride,
          b.slots};
}

OpOptions op_options_of(const kvloom_op_options* options) {
  if (options == nullptr) return {};
  const kvloom_op_options o = read_struct(options, "kvloom_op_options");
  return {static_cast<Backend>(o.backend), o.device, o.stream, o.check_pointers != 0};
}

void batch_of(const kvloom_batch* from, BatchCopy& to, const char* function) {
  const kvloom_batch b = read_struct(from, "kvloom_batch");
  to.batch = {};
  to.groups.clear();
  to.batch.num_requests = b.num_requests;
  to.batch.qo_indptr = indices_of(b.qo_indptr, function, "qo_indptr");
  to.batch.kv_len = indices_of(b.kv_len, function, "kv_len");
  to.batch.list_indptr = indices_of(b.list_indptr, function, "list_indptr");
  to.batch.pages = indices_of(b.pages, function, "pages");
  to.batch.table_stride = b.table_stride;
  to.batch.lists_per_kv_head = b.lists_per_kv_head != 0;
  to.batch.kv_position = static_cast<KvPosition>(b.kv_position);
  to.batch.q_pos0 = b.q_pos0;
  to.batch.q_pos = b.q_pos;
  to.batch.prefix = b.prefix;
  require(b.num_groups >= 0 && (b.groups != nullptr || b.num_groups == 0),
          "{}: groups: got {} of them at {}, wanted an array and its length", function, b.num_groups,
          b.groups == nullptr ? "a null pointer" : "an address");
  for (int64_t i = 0; i < b.num_groups; ++i) {
    const kvloom_level_group& g = b.groups[i];
    to.groups.push_back({g.level, g.list_begin, g.kv_begin, g.kv_end, g.kv_pos0, g.kv_index0, g.kv_head, {g.tokens, g.num_tokens}});
  }
  to.batch.groups = {to.groups.data(), int64_t(to.groups.size())};
}

DeviceBatch device_batch_of(const kvloom_device_batch* from, const char* function) {
  const kvloom_device_batch b = read_struct(from, "kvloom_device_batch");
  DeviceBatch to;
  to.num_requests = b.num_requests;
  to.num_tokens = b.num_tokens;
  to.max_q_len = b.max_q_len;
  to.qo_indptr = indices_of(b.qo_indptr, function, "qo_indptr");
  to.kv_len = indices_of(b.kv_len, function, "kv_len");
  to.list_indptr = indices_of(b.list_indptr, function, "list_indptr");
  to.pages = indices_of(b.pages, function, "pages");
  to.table_stride = b.table_stride;
  to.kv_tokens = b.kv_tokens;
  to.lists_per_kv_head = b.lists_per_kv_head != 0;
  to.kv_position = static_cast<KvPosition>(b.kv_position);
  to.q_pos0 = b.q_pos0;
  to.prefix = b.prefix;
  return to;
}

char* string_for_caller(const std::string& text) {
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace kvloom::api

extern "C" const char* kvloom_last_error(void) { return kvloom::api::last_error_shown; }
