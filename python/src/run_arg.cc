#include "python/src/run_arg.h"

#include "python/src/errors.h"

#include <cstring>

namespace kvloom::python {
namespace {

/// float32, one for every head.
void require_per_head(const TensorArg& t, int32_t heads, Place place) {
  require(t, {KVLOOM_F32, place, 1, {heads, 0, 0, 0}, {"heads", "", "", ""}, false, true});
}

/// A contiguous array of another type than the five, of at least `size` elements.
void require_array(const TensorArg& t, uint8_t code, uint8_t bits, const char* type, int64_t size, const char* label, Place place) {
  const std::string expected = std::string("`") + t.name() + "`: expected a contiguous " + type + " array [" + label + "], at least " +
                               std::to_string(size) + " long, on " + place_text(place) + ", got ";
  if (!t.is_type(code, bits)) raise_type_error(expected + t.describe());
  if (t.ndim() != 1 || t.size() < size || !t.contiguous() || !t.is_at(place)) raise_value_error(expected + t.describe());
}

nb::object make_output(const TensorArg& like, std::initializer_list<int64_t> shape, int32_t dtype) {
  nb::list dims;
  for (const int64_t d : shape) dims.append(d);
  return nb::module_::import_("kvloom._frameworks").attr("empty")(nb::handle(like.object()), nb::tuple(dims), dtype_name(dtype));
}

/// Frameworks whose tensors can't be written get theirs made of what was.
nb::object as_framework(const TensorArg& like, const nb::object& made, bool ours) {
  if (!ours || Py_TYPE(made.ptr()) == Py_TYPE(like.object())) return made;
  return nb::module_::import_("kvloom._frameworks").attr("converted")(nb::handle(like.object()), made);
}

}  // namespace

int32_t layout_of(const char* name) {
  if (std::strcmp(name, "NHD") == 0) return KVLOOM_NHD;
  if (std::strcmp(name, "HND") == 0) return KVLOOM_HND;
  raise_value_error(std::string("`layout`: expected 'NHD' or 'HND', got '") + name + "'");
}

void RunArg::take(const RunHandles& h, const RunShape& shape) {
  kvloom_run_tensors_init(&tensors_, sizeof tensors_);
  tensors_.layout = layout_of(h.layout);
  const SpecFacts& f = shape.facts;
  q_.take(h.q, "q");
  require(q_, {f.q_dtype, shape.place, 3, {shape.total_tokens, f.num_qo_heads, f.head_dim_qk, 0}, {}});
  take_cache(h, shape);
  take_arrays(h, shape);
  take_scales(h, shape);
  take_params(h.params, shape.place);
  stream_ = shape.place.cuda ? stream_of(h.stream, q_) : nullptr;
  take_outputs(h, shape);
  tensors_.q = q_.c();
  tensors_.k = k_.c();
  tensors_.v = v_.c();
  tensors_.o = o_.c();
  tensors_.lse = lse_.c();
  tensors_.bare_state = h.bare_state;
}

void RunArg::take_cache(const RunHandles& h, const RunShape& shape) {
  const SpecFacts& f = shape.facts;
  k_.take(h.k, "k");
  v_.take(h.v, "v");
  const bool nhd = tensors_.layout == KVLOOM_NHD;
  for (const auto& [t, dim] : {std::pair{&k_, f.head_dim_qk}, std::pair{&v_, f.head_dim_vo}}) {
    if (f.page_size == 0) {
      const int64_t n = f.num_kv_heads;
      if (nhd) require(*t, {f.kv_dtype, shape.place, 3, {-1, n, dim, 0}, {"tokens"}});
      if (!nhd) require(*t, {f.kv_dtype, shape.place, 3, {n, -1, dim, 0}, {"", "tokens"}});
    } else if (f.page_size == 1 && t->given() && t->ndim() == 3) {  // a pool of single slots
      require(*t, {f.kv_dtype, shape.place, 3, {-1, f.num_kv_heads, dim, 0}, {"slots"}});
    } else {
      const int64_t a = nhd ? f.page_size : f.num_kv_heads, b = nhd ? f.num_kv_heads : f.page_size;
      require(*t, {f.kv_dtype, shape.place, 4, {-1, a, b, dim}, {"pages"}});
    }
  }
}

void RunArg::take_arrays(const RunHandles& h, const RunShape& shape) {
  const SpecFacts& f = shape.facts;
  pages_.take(h.pages, "pages", shape.place);
  tensors_.pages = pages_.c();
  page_pos_.take(h.page_pos, "page_pos");
  alibi_slopes_.take(h.alibi_slopes, "alibi_slopes");
  sink_.take(h.sink, "sink");
  mask_.take(h.mask, "mask");
  mask_indptr_.take(h.mask_indptr, "mask_indptr");
  if (page_pos_.given()) {
    const int64_t ids = pages_.given() && pages_.size() > shape.num_page_ids ? pages_.size() : shape.num_page_ids;
    require_array(page_pos_, dlpack::kInt, 32, "int32", ids, "page ids", shape.place);
    tensors_.page_pos = static_cast<const int32_t*>(page_pos_.data());
  }
  if (alibi_slopes_.given()) {
    require_per_head(alibi_slopes_, f.num_qo_heads, shape.place);
    tensors_.alibi_slopes = static_cast<const float*>(alibi_slopes_.data());
  }
  if (sink_.given()) {
    require_per_head(sink_, f.num_qo_heads, shape.place);
    tensors_.sink = static_cast<const float*>(sink_.data());
  }
  if (mask_indptr_.given()) {
    require_array(mask_indptr_, dlpack::kInt, 64, "int64", int64_t(shape.num_requests) + 1, "requests + 1", shape.place);
    tensors_.mask_indptr = static_cast<const int64_t*>(mask_indptr_.data());
  }
  if (mask_.given()) {
    require_array(mask_, dlpack::kUint, 8, "uint8", 0, "bytes of packed bits", shape.place);
    tensors_.mask = static_cast<const uint8_t*>(mask_.data());
    if (mask_indptr_.given() && !shape.place.cuda) check_mask(shape);
  }
}

/// The C interface checks each request's number of bytes; only here is it known where the mask ends.
void RunArg::check_mask(const RunShape& shape) const {
  for (int32_t r = 0; r <= shape.num_requests; ++r) {
    const int64_t end = tensors_.mask_indptr[r];
    if (end < 0 || end > mask_.size()) {
      raise_value_error("`mask_indptr`: entry " + std::to_string(r) + ": expected 0 .. " + std::to_string(mask_.size()) +
                        ", the bytes of `mask`, got " + std::to_string(end));
    }
  }
}

void RunArg::take_scales(const RunHandles& h, const RunShape& shape) {
  if (h.q_scale.is_none() && h.k_scale.is_none() && h.v_scale.is_none()) return;
  kvloom_scales_init(&scales_, sizeof scales_);
  const auto number_or_array = [&](nb::handle value, const char* name, TensorArg& array, float& to, const float*& per_head) {
    if (value.is_none()) return;
    if (PyFloat_Check(value.ptr()) || PyLong_Check(value.ptr())) {
      to = number_of(value, name);
      return;
    }
    array.take(value, name);
    require_per_head(array, shape.facts.num_kv_heads, shape.place);
    per_head = static_cast<const float*>(array.data());
  };
  if (!h.q_scale.is_none()) scales_.q = number_of(h.q_scale, "q_scale");
  number_or_array(h.k_scale, "k_scale", k_scale_, scales_.k, scales_.k_per_head);
  number_or_array(h.v_scale, "v_scale", v_scale_, scales_.v, scales_.v_per_head);
  tensors_.scale = &scales_;
}

void RunArg::take_params(nb::handle params, Place place) {
  if (params.is_none()) return;
  if (!PyDict_Check(params.ptr()))
    raise_type_error("`params`: expected a dict of names and numbers or arrays, got " + class_name(params));
  const auto n = size_t(PyDict_Size(params.ptr()));
  param_tensors_ = std::make_unique<TensorArg[]>(n);
  param_names_.reserve(n);
  size_t i = 0;
  for (const auto& [name, value] : nb::borrow<nb::dict>(params)) {
    if (!PyUnicode_Check(name.ptr())) raise_type_error("`params`: expected names, got " + nb::cast<std::string>(nb::repr(name)));
    param_names_.push_back(nb::cast<std::string>(name));
    kvloom_param p{param_names_.back().c_str(), nullptr, 0.0};
    if (PyFloat_Check(value.ptr()) || PyLong_Check(value.ptr())) {
      p.number = PyFloat_AsDouble(value.ptr());
      if (PyErr_Occurred()) throw nb::python_error();
    } else {
      param_tensors_[i].take(value, p.name);
      p.tensor = param_tensors_[i].c();
      if (p.tensor == nullptr) raise_type_error("`params`: " + param_names_.back() + ": expected a number or an array, got None");
      if (!param_tensors_[i].is_at(place)) {
        raise_value_error("`params`: " + param_names_.back() + ": expected an array on " + place_text(place) + ", got " +
                          param_tensors_[i].describe() + "; move it there");
      }
    }
    params_.push_back(p);
    ++i;
  }
  tensors_.params = params_.data();
  tensors_.num_params = int64_t(params_.size());
}

void RunArg::take_outputs(const RunHandles& h, const RunShape& shape) {
  const SpecFacts& f = shape.facts;
  out_object_ = h.out.is_none() ? make_output(q_, {shape.total_tokens, f.num_qo_heads, f.head_dim_vo}, f.o_dtype) : nb::borrow(h.out);
  wants_lse_ = h.return_lse || !h.lse.is_none();
  made_out_ = h.out.is_none();
  made_lse_ = h.lse.is_none();
  if (wants_lse_) lse_object_ = h.lse.is_none() ? make_output(q_, {shape.total_tokens, f.num_qo_heads}, KVLOOM_F32) : nb::borrow(h.lse);
  o_.take(out_object_, "out");
  require(o_, {f.o_dtype, shape.place, 3, {shape.total_tokens, f.num_qo_heads, f.head_dim_vo, 0}, {}, true});
  if (!wants_lse_) return;
  lse_.take(lse_object_, "lse");
  require(lse_, {KVLOOM_F32, shape.place, 2, {shape.total_tokens, f.num_qo_heads, 0, 0}, {}, true});
}

bool RunArg::must_wait() const {
  bool found = pages_.streamless();
  for (const TensorArg* t : {&q_, &k_, &v_, &page_pos_, &alibi_slopes_, &sink_, &mask_, &mask_indptr_, &k_scale_, &v_scale_})
    found |= t->given() && t->streamless();
  for (size_t i = 0; i < params_.size(); ++i) found |= param_tensors_[i].given() && param_tensors_[i].streamless();
  return found;
}

nb::object RunArg::result() const {
  const nb::object out = as_framework(q_, out_object_, made_out_);
  if (!wants_lse_) return out;
  return nb::make_tuple(out, as_framework(q_, lse_object_, made_lse_));
}

}  // namespace kvloom::python
