#include "python/src/spec_arg.h"

#include "python/src/errors.h"

#include <cstring>

namespace kvloom::python {
namespace {

template <class T>
T field(nb::handle object, const char* name) {
  const nb::object value = object.attr(name);
  if constexpr (std::is_same_v<T, float>) {
    const double number = PyFloat_AsDouble(value.ptr());
    if (!PyErr_Occurred()) return float(number);
  } else if constexpr (std::is_same_v<T, bool>) {
    const int truth = PyObject_IsTrue(value.ptr());
    if (truth >= 0) return truth != 0;
  } else {
    const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
    const long long wide = number.is_valid() ? PyLong_AsLongLong(number.ptr()) : 0;
    if (!PyErr_Occurred() && wide == T(wide)) return T(wide);
  }
  PyErr_Clear();
  raise_type_error(std::string("`") + name + "`: expected a number of " + std::to_string(8 * sizeof(T)) + " bits, got " +
                   nb::cast<std::string>(nb::repr(value)));
}

std::string text_field(nb::handle object, const char* name) {
  const nb::object value = object.attr(name);
  if (value.is_none()) return "";
  if (!PyUnicode_Check(value.ptr()))
    raise_type_error(std::string("`") + name + "`: expected a str, got " + nb::cast<std::string>(nb::repr(value)));
  return nb::cast<std::string>(value);
}

int32_t choice(nb::handle object, const char* name, std::initializer_list<const char*> names) {
  const std::string word = text_field(object, name);
  int32_t number = 0;
  std::string all;
  for (const char* n : names) {
    if (word == n) return number;
    ++number;
    all += (all.empty() ? "'" : ", '") + std::string(n) + "'";
  }
  raise_value_error(std::string("`") + name + "`: expected one of " + all + ", got '" + word + "'");
}

const char* or_null(const std::string& text) { return text.empty() ? nullptr : text.c_str(); }

}  // namespace

kvloom_rope rope_arg(nb::handle rope) {
  kvloom_rope r;
  kvloom_rope_init(&r, sizeof r);
  if (rope.is_none()) return r;
  r.mode = choice(rope, "mode", {"none", "interleaved", "half_split"});
  r.rotary_dim = field<int32_t>(rope, "rotary_dim");
  r.theta = field<float>(rope, "theta");
  r.scaling = field<float>(rope, "scaling");
  r.low_freq_factor = field<float>(rope, "low_freq_factor");
  r.high_freq_factor = field<float>(rope, "high_freq_factor");
  r.original_context = field<float>(rope, "original_context");
  return r;
}

SpecArg::SpecArg(nb::handle s) {
  kvloom_spec_init(&spec_, sizeof spec_);
  spec_.num_qo_heads = field<int32_t>(s, "num_qo_heads");
  spec_.num_kv_heads = field<int32_t>(s, "num_kv_heads");
  spec_.head_dim_qk = field<int32_t>(s, "head_dim");
  spec_.head_dim_vo = field<int32_t>(s, "head_dim_vo");
  spec_.q_dtype = dtype_of_name(text_field(s, "dtype").c_str(), "dtype");
  spec_.kv_dtype = dtype_of_name(text_field(s, "kv_dtype").c_str(), "kv_dtype");
  spec_.o_dtype = dtype_of_name(text_field(s, "o_dtype").c_str(), "o_dtype");
  const nb::object page_size = s.attr("page_size");
  spec_.storage = page_size.is_none() ? KVLOOM_RAGGED : KVLOOM_PAGED;
  if (!page_size.is_none()) spec_.page_size = field<int32_t>(s, "page_size");
  spec_.sm_scale = field<float>(s, "sm_scale");
  spec_.causal = field<bool>(s, "causal");
  spec_.window_left = field<int32_t>(s, "window_left");
  spec_.window_right = field<int32_t>(s, "window_right");
  spec_.soft_cap = field<float>(s, "soft_cap");
  spec_.alibi = field<bool>(s, "alibi");
  spec_.custom_mask = field<bool>(s, "custom_mask");
  spec_.sink = field<bool>(s, "sink");
  spec_.reduction = choice(s, "reduction", {"softmax", "sum"});
  spec_.sigmoid_bias = field<float>(s, "sigmoid_bias");
  rope_ = rope_arg(s.attr("rope"));
  if (rope_.mode != KVLOOM_ROPE_NONE) spec_.rope = &rope_;
  const nb::object variant = s.attr("variant");
  if (!variant.is_none()) {
    variant_text_ = text_field(variant, "text");
    variant_name_ = text_field(variant, "name");
    spec_.variant_text = variant_text_.c_str();
    spec_.variant_file = or_null(variant_name_);
  }
}

OptionsArg::OptionsArg(nb::handle o) {
  kvloom_options_init(&options_, sizeof options_);
  options_.backend = choice(o, "backend", {"cpu", "cuda", "auto"});
  options_.threads = field<int32_t>(o, "threads");
  options_.num_ctas = field<int32_t>(o, "num_ctas");
  options_.policy = choice(o, "policy", {"none", "heap", "stream", "fill", "fixed_split", "automatic"});
  options_.levels = choice(o, "levels", {"off", "automatic"});
  options_.split_tokens = field<int32_t>(o, "split_tokens");
  options_.check_pages = field<bool>(o, "check_pages");
  options_.check_pointers = field<bool>(o, "check_pointers");
  options_.early_launch = field<bool>(o, "early_launch");
  options_.device = field<int32_t>(o, "device");
  cpu_target_ = text_field(o, "cpu_target");
  cuda_arch_ = text_field(o, "cuda_arch");
  kernel_ = text_field(o, "kernel");
  options_.cpu_target = or_null(cpu_target_);
  options_.cuda_arch = or_null(cuda_arch_);
  options_.kernel = or_null(kernel_);
}

kvloom_capacity capacity_arg(nb::handle c) {
  kvloom_capacity capacity;
  kvloom_capacity_init(&capacity, sizeof capacity);
  capacity.max_requests = field<int32_t>(c, "max_requests");
  capacity.max_query_tokens = field<int64_t>(c, "max_query_tokens");
  capacity.max_kv_tokens = field<int64_t>(c, "max_kv_tokens");
  capacity.max_level_rows = field<int64_t>(c, "max_level_rows");
  capacity.max_groups = field<int32_t>(c, "max_groups");
  return capacity;
}

SpecFacts::SpecFacts(const kvloom_spec& s)
    : num_qo_heads(s.num_qo_heads),
      num_kv_heads(s.num_kv_heads),
      head_dim_qk(s.head_dim_qk),
      head_dim_vo(s.head_dim_vo),
      q_dtype(s.q_dtype),
      kv_dtype(s.kv_dtype),
      o_dtype(s.o_dtype),
      page_size(s.storage == KVLOOM_PAGED ? s.page_size : 0) {}

}  // namespace kvloom::python
