#include "python/src/device_batch_arg.h"

#include "python/src/batch_arg.h"
#include "python/src/errors.h"
#include "python/src/spec_arg.h"

namespace kvloom::python {
namespace {

/// Nothing is at no address; `data` of an IndexArg without elements is the host's.
kvloom_indices there(const IndexArg& array) { return array.size() > 0 ? array.c() : kvloom_indices{nullptr, 0, 0}; }

/// A size that the host says. `meaning` ends the message where it is missing.
int64_t size_arg(nb::handle value, const char* name, int64_t most, const char* meaning) {
  if (value.is_none()) raise_type_error(std::string("`") + name + "`: expected an integer, got None; " + meaning);
  const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  const long long n = number.is_valid() ? PyLong_AsLongLong(number.ptr()) : -1;
  if (PyErr_Occurred()) {
    PyErr_Clear();
    raise_type_error(std::string("`") + name + "`: expected an integer, got " + nb::cast<std::string>(nb::repr(value)));
  }
  if (n < 0 || n > most)
    raise_value_error(std::string("`") + name + "`: expected 0 to " + std::to_string(most) + ", got " + std::to_string(n));
  return n;
}

}  // namespace

void DeviceBatchArg::take(const DeviceBatchHandles& h, const SpecFacts& facts, Place place, Ramp& ramp) {
  kvloom_device_batch_init(&batch_, sizeof batch_);
  take_lists(h, facts, place);
  take_stream(h);
  take_queries(h, place, ramp);
  take_array(q_pos0_, h.q_pos0, "q_pos0", place);
  take_array(prefix_, h.prefix, "prefix", place);
  batch_.q_pos0 = q_pos0_.int32_in_place(batch_.num_requests, "request");
  batch_.prefix = prefix_.int32_in_place(batch_.num_requests, "request");
  batch_.kv_position = position_of(h.kv_position);
}

void DeviceBatchArg::take_array(IndexArg& to, nb::handle from, const char* name, Place place) {
  to.take(from, name, place);
  if (!to.given()) return;
  to.refuse_gaps();
  arrays_.push_back(nb::borrow(from));
}

void DeviceBatchArg::take_lists(const DeviceBatchHandles& h, const SpecFacts& facts, Place place) {
  take_array(kv_len_, h.kv_len, "kv_len", place);
  batch_.kv_len = there(kv_len_);
  batch_.lists_per_kv_head = h.lists_per_kv_head;
  batch_.num_requests = num_requests_of(kv_len_, h.lists_per_kv_head, facts.num_kv_heads);
  const bool table = !h.block_table.is_none();
  take_array(list_indptr_, h.list_indptr, "list_indptr", place);
  pages_.take(table ? h.block_table : h.pages, table ? "block_table" : "pages", place);
  if (!table) pages_.refuse_gaps();
  batch_.table_stride = table_stride_of(pages_, list_indptr_, kv_len_.size(), table, !h.pages.is_none(), false);
  batch_.list_indptr = there(list_indptr_);
  batch_.pages = there(pages_);
  if (facts.page_size == 0) {
    batch_.kv_tokens = size_arg(h.kv_tokens, "kv_tokens", INT64_MAX, "without pages it is the number of tokens that k and v have");
  } else if (!h.kv_tokens.is_none()) {
    raise_value_error("`kv_tokens`: expected None with pages of " + std::to_string(facts.page_size) + " tokens, got " +
                      nb::cast<std::string>(nb::repr(h.kv_tokens)));
  }
}

void DeviceBatchArg::take_stream(const DeviceBatchHandles& h) {
  TensorArg lengths;
  lengths.take(h.kv_len, "kv_len");
  stream_ = stream_of(h.stream, lengths);
}

void DeviceBatchArg::take_queries(const DeviceBatchHandles& h, Place place, Ramp& ramp) {
  const int64_t ends = int64_t(batch_.num_requests) + 1;
  if (h.qo_indptr.is_none()) {  // a decode step: one query token a request
    batch_.num_tokens = h.num_tokens.is_none() ? batch_.num_requests : size_arg(h.num_tokens, "num_tokens", INT64_MAX, "");
    batch_.max_q_len = h.max_q_len.is_none() ? 1 : int32_t(size_arg(h.max_q_len, "max_q_len", INT32_MAX, ""));
    if (batch_.num_requests > ramp.max_requests) {
      raise_refusal(KVLOOM_OVER_CAPACITY, "`kv_len`: expected at most max_requests = " + std::to_string(ramp.max_requests) +
                                              " requests, got " + std::to_string(batch_.num_requests));
    }
    if (!ramp.array.is_valid()) {
      const nb::object made =
          nb::module_::import_("kvloom._frameworks").attr("ramp")(h.kv_len, place.device, int64_t(ramp.max_requests) + 1);
      if (!ramp.array.is_valid()) ramp.array = made;  // another thread's may be in use by now
    }
    qo_indptr_.take(ramp.array, "qo_indptr", place);
    batch_.qo_indptr = qo_indptr_.c();
    batch_.qo_indptr.size = ends;
    return;
  }
  take_array(qo_indptr_, h.qo_indptr, "qo_indptr", place);
  if (qo_indptr_.size() != ends) {
    raise_value_error("`qo_indptr`: expected " + std::to_string(ends) + " entries for " + std::to_string(batch_.num_requests) +
                      " requests, got " + std::to_string(qo_indptr_.size()));
  }
  batch_.num_tokens =
      size_arg(h.num_tokens, "num_tokens", INT64_MAX, "beside `qo_indptr` it is the rows that q has in every run of the plan");
  batch_.max_q_len = int32_t(size_arg(h.max_q_len, "max_q_len", INT32_MAX, "beside `qo_indptr` it is the most query tokens of a request"));
  batch_.qo_indptr = there(qo_indptr_);
}

}  // namespace kvloom::python
