#include "python/src/index_arg.h"

#include "python/src/errors.h"

namespace kvloom::python {
namespace {

const int64_t kNothing = 0;  // what an array that is given and empty points at

std::string quoted(const char* name) { return std::string("`") + name + "`: "; }

bool is_list(PyObject* o) { return PyList_Check(o) || PyTuple_Check(o) || PyRange_Check(o); }

nb::object tuple_of(PyObject* list) {
  const nb::object tuple = nb::steal(PySequence_Tuple(list));
  if (!tuple.is_valid()) throw nb::python_error();
  return tuple;
}

/// Appends the integers of a tuple; `where` is in front of an element's number in messages.
void append_integers(const nb::object& tuple, const std::string& where, std::vector<int64_t>& to) {
  const Py_ssize_t n = PyTuple_Size(tuple.ptr());
  for (Py_ssize_t i = 0; i < n; ++i) {
    const nb::object number = nb::steal(PyNumber_Index(PyTuple_GetItem(tuple.ptr(), i)));
    to.push_back(number.is_valid() ? PyLong_AsLongLong(number.ptr()) : 0);
    if (PyErr_Occurred()) {
      PyErr_Clear();
      raise_type_error(where + "element " + std::to_string(i) + ": expected an integer");
    }
  }
}

}  // namespace

void IndexArg::hold_lists(const nb::object& rows) {
  const Py_ssize_t n = PyTuple_Size(rows.ptr());
  std::vector<int64_t> values;
  Py_ssize_t length = 0;
  for (Py_ssize_t r = 0; r < n; ++r) {
    PyObject* const row = PyTuple_GetItem(rows.ptr(), r);
    const std::string where = quoted(name_) + "row " + std::to_string(r) + ": ";
    if (!is_list(row)) raise_type_error(where + "expected a list, as row 0 is, got " + class_name(row));
    const nb::object numbers = tuple_of(row);
    const Py_ssize_t entries = PyTuple_Size(numbers.ptr());
    if (r == 0) length = entries;
    if (entries != length) {
      raise_value_error(where + "expected " + std::to_string(length) + " entries, as row 0 has, got " + std::to_string(entries) +
                        "; fill rows up to one length with 0, what no length reaches is not read");
    }
    append_integers(numbers, where, values);
  }
  hold_64(std::move(values));
  ndim_ = 2;
  shape_[0] = n;
  shape_[1] = row_stride_ = length;
}

void IndexArg::take(nb::handle object, const char* name, Place place, bool anywhere) {
  name_ = name;
  given_ = object.is_valid() && !object.is_none();
  if (!given_) return;
  PyObject* const o = object.ptr();
  if (is_list(o)) {
    const nb::object list = tuple_of(o);
    const Py_ssize_t n = PyTuple_Size(list.ptr());
    const bool table = n > 0 && is_list(PyTuple_GetItem(list.ptr(), 0));
    std::vector<int64_t> values;
    values.reserve(size_t(n));
    if (!table) append_integers(list, quoted(name), values);
    if (place.cuda)
      raise_value_error(quoted(name) + "expected integers on " + place_text(place) + ", got a list; the GPU reads them: move them there");
    return table ? hold_lists(list) : hold_64(std::move(values));
  }
  TensorArg t;
  t.take(object, name);
  streamless_ = t.streamless();
  const bool wide = t.is_type(dlpack::kInt, 64);
  if (!wide && !t.is_type(dlpack::kInt, 32)) raise_type_error(quoted(name) + "expected int32 or int64, got " + t.describe());
  if (!t.is_at(place) && !anywhere) {
    raise_value_error(quoted(name) + "expected integers on " + place_text(place) + ", got " + t.describe() +
                      (place.cuda ? "; the GPU reads them: move them there" : "; the host reads them: keep a copy there"));
  }
  if (t.ndim() == 0) raise_value_error(quoted(name) + "expected a one-dimensional array, got a single number");
  ndim_ = t.ndim();
  size_ = t.size();
  for (int32_t d = 0; d < ndim_; ++d) shape_[d] = t.shape(d);
  row_stride_ = shape_[ndim_ - 1];
  if (t.contiguous()) {
    data_ = size_ > 0 ? t.data() : &kNothing;
    bits_ = wide ? 64 : 32;
    owner_ = nb::borrow(object);
    return;
  }
  if (ndim_ == 2 && t.stride(1) == 1 && t.stride(0) >= shape_[1]) {  // a table with wider rows: read in place
    data_ = t.data();
    bits_ = wide ? 64 : 32;
    row_stride_ = t.stride(0);
    size_ = shape_[0] > 0 ? (shape_[0] - 1) * row_stride_ + shape_[1] : 0;
    owner_ = nb::borrow(object);
    return;
  }
  if (!t.on_host()) raise_value_error(quoted(name) + "expected a contiguous array, got strides; make it contiguous");
  copy(t);
}

void IndexArg::copy(const TensorArg& t) {
  const bool wide = t.is_type(dlpack::kInt, 64);
  std::vector<int64_t> values;
  values.reserve(size_t(size_));
  int64_t at[TensorArg::kMaxDims] = {};
  for (int64_t i = 0; i < size_; ++i) {
    int64_t offset = 0;
    for (int32_t d = 0; d < ndim_; ++d) offset += at[d] * t.stride(d);
    values.push_back(wide ? static_cast<const int64_t*>(t.data())[offset] : static_cast<const int32_t*>(t.data())[offset]);
    for (int32_t d = ndim_ - 1; d >= 0 && ++at[d] == shape_[d]; --d) at[d] = 0;
  }
  const int64_t row = row_stride_;
  const int32_t ndim = ndim_;
  hold_64(std::move(values));
  ndim_ = ndim;
  row_stride_ = row;
}

void IndexArg::hold_64(std::vector<int64_t> values) {
  wide_ = std::move(values);
  data_ = wide_.data();
  bits_ = 64;
  size_ = row_stride_ = int64_t(wide_.size());
  if (ndim_ == 1) shape_[0] = size_;
  if (wide_.empty()) data_ = &kNothing;
}

void IndexArg::close_gaps() {
  if (ndim_ != 2 || row_stride_ == shape_[1]) return;
  std::vector<int64_t> values;
  for (int64_t row = 0; row < shape_[0]; ++row) {
    for (int64_t i = 0; i < shape_[1]; ++i) values.push_back((*this)[row * row_stride_ + i]);
  }
  hold_64(std::move(values));
  row_stride_ = shape_[1];
}

void IndexArg::refuse_gaps() const {
  if (ndim_ == 2 && row_stride_ != shape_[1])
    raise_value_error(quoted(name_) + "expected a contiguous array, got strides; make it contiguous");
}

void IndexArg::hold(std::vector<int32_t> values, const char* name) {
  name_ = name;
  given_ = true;
  narrow_ = std::move(values);
  data_ = narrow_.data();
  bits_ = 32;
  size_ = row_stride_ = shape_[0] = int64_t(narrow_.size());
}

int64_t IndexArg::operator[](int64_t i) const {
  return bits_ == 64 ? static_cast<const int64_t*>(data_)[i] : static_cast<const int32_t*>(data_)[i];
}

kvloom_indices IndexArg::c() const { return given_ ? kvloom_indices{data_, size_, bits_} : kvloom_indices{nullptr, 0, 0}; }

void IndexArg::require_size(int64_t size, const char* label) const {
  if (size_ != size || ndim_ != 1) {
    raise_value_error(quoted(name_) + "expected " + std::to_string(size) + " entries, one for every " + label + ", got " +
                      std::to_string(size_) + (ndim_ != 1 ? " in " + std::to_string(ndim_) + " dimensions" : ""));
  }
}

const int32_t* IndexArg::as_int32(int64_t size, const char* label) {
  if (!given_) return nullptr;
  require_size(size, label);
  return flat_int32();
}

const int32_t* IndexArg::int32_in_place(int64_t size, const char* label) const {
  if (!given_) return nullptr;
  require_size(size, label);
  if (bits_ != 32) raise_type_error(quoted(name_) + "expected int32, got int64; convert it where it is");
  return size_ > 0 ? static_cast<const int32_t*>(data_) : nullptr;
}

const int32_t* IndexArg::flat_int32() {
  if (bits_ == 32) return static_cast<const int32_t*>(data_);
  narrow_.resize(size_t(size_) + 1);
  for (int64_t i = 0; i < size_; ++i) {
    const int64_t value = (*this)[i];
    if (value != int32_t(value))
      raise_value_error(quoted(name_) + "element " + std::to_string(i) + ": expected 32 bits, got " + std::to_string(value));
    narrow_[size_t(i)] = int32_t(value);
  }
  return narrow_.data();
}

const int64_t* IndexArg::as_int64(int64_t size, const char* label) {
  if (!given_) return nullptr;
  require_size(size, label);
  if (bits_ == 64) return static_cast<const int64_t*>(data_);
  wide_.resize(size_t(size) + 1);
  for (int64_t i = 0; i < size; ++i) wide_[size_t(i)] = (*this)[i];
  return wide_.data();
}

}  // namespace kvloom::python
