#include "python/src/batch_arg.h"

#include "python/src/errors.h"

namespace kvloom::python {
namespace {

template <class T>
T group_field(nb::handle group, const char* name) {
  const nb::object value = group.attr(name);
  const long long number = PyLong_AsLongLong(value.ptr());
  if (PyErr_Occurred()) throw nb::python_error();
  if (number != T(number)) raise_value_error(std::string("`groups`: ") + name + ": expected 32 bits, got " + std::to_string(number));
  return T(number);
}

}  // namespace

int32_t position_of(nb::handle word) {
  const std::string text = nb::cast<std::string>(nb::str(word));
  const char* names[] = {"linear", "page_table", "page_id"};
  for (int32_t i = 0; i < 3; ++i) {
    if (text == names[i]) return i;
  }
  raise_value_error("`kv_position`: expected 'linear', 'page_table' or 'page_id', got '" + text + "'");
}

int32_t num_requests_of(const IndexArg& kv_len, bool lists_per_kv_head, int32_t num_kv_heads) {
  if (!kv_len.given()) raise_type_error("`kv_len`: expected the tokens of each request, got None");
  const int64_t lists = kv_len.size(), heads = lists_per_kv_head ? num_kv_heads : 1;
  if (heads <= 0 || lists % heads != 0 || lists / heads > INT32_MAX) {
    raise_value_error("`kv_len`: expected one entry for every request and KV head, " + std::to_string(num_kv_heads) +
                      " heads a request, got " + std::to_string(lists));
  }
  return int32_t(lists / heads);
}

int64_t table_stride_of(const IndexArg& pages, const IndexArg& list_indptr, int64_t lists, bool table, bool has_pages, bool has_groups) {
  if (table) {
    if (list_indptr.given() || has_pages)
      raise_value_error("`block_table`: expected it alone, got `pages` or `list_indptr` as well; give one of the two forms");
    int64_t rows = 1;
    std::string shape;
    for (int32_t d = 0; d < pages.ndim(); ++d) {
      if (d + 1 < pages.ndim()) rows *= pages.shape(d);
      shape += (d > 0 ? ", " : "") + std::to_string(pages.shape(d));
    }
    if (pages.ndim() < 2 || rows != lists) {
      raise_value_error("`block_table`: expected [" + std::to_string(lists) + " lists, entries], a row for each of `kv_len`, got [" + shape + "]");
    }
    return pages.row_stride() > 0 ? pages.row_stride() : 1;  // a table of no entries is a table all the same
  }
  if (!list_indptr.given() && !has_groups && lists > 0) {
    raise_value_error(std::string(has_pages ? "`list_indptr`: expected where each request's `pages` begin"
                                           : "`block_table`: expected it, or `pages` with `list_indptr` (without pages, page_size None: `list_indptr`)") +
                     ", got None");
  }
  if (list_indptr.given() && list_indptr.size() != lists && list_indptr.size() != lists + 1) {
    raise_value_error("`list_indptr`: expected " + std::to_string(lists) + " or " + std::to_string(lists + 1) + " entries, got " +
                      std::to_string(list_indptr.size()));
  }
  return 0;
}

void BatchArg::take(const BatchHandles& h, int32_t num_kv_heads, bool ids_unread) {
  kvloom_batch_init(&batch_, sizeof batch_);
  take_lists(h, num_kv_heads, ids_unread);
  if (!h.qo_indptr.is_none()) {
    qo_indptr_.take(h.qo_indptr, "qo_indptr");
    qo_indptr_.close_gaps();
    if (qo_indptr_.size() != int64_t(batch_.num_requests) + 1) {
      raise_value_error("`qo_indptr`: expected " + std::to_string(int64_t(batch_.num_requests) + 1) + " entries for " +
                        std::to_string(batch_.num_requests) + " requests, got " + std::to_string(qo_indptr_.size()));
    }
  } else {  // a decode step: one query token a request
    std::vector<int32_t> ones(size_t(batch_.num_requests) + 1);
    for (size_t i = 0; i < ones.size(); ++i) ones[i] = int32_t(i);
    qo_indptr_.hold(std::move(ones), "qo_indptr");
  }
  batch_.qo_indptr = qo_indptr_.c();
  total_tokens_ = qo_indptr_[batch_.num_requests];
  q_pos0_.take(h.q_pos0, "q_pos0");
  q_pos_.take(h.q_pos, "q_pos");
  prefix_.take(h.prefix, "prefix");
  batch_.q_pos0 = q_pos0_.as_int32(batch_.num_requests, "request");
  batch_.q_pos = q_pos_.as_int32(total_tokens_ > 0 ? total_tokens_ : 0, "query token");
  batch_.prefix = prefix_.as_int32(batch_.num_requests, "request");
  batch_.kv_position = position_of(h.kv_position);
  take_groups(h.groups);
}

void BatchArg::take_lists(const BatchHandles& h, int32_t num_kv_heads, bool ids_unread) {
  kv_len_.take(h.kv_len, "kv_len");
  kv_len_.close_gaps();
  batch_.num_requests = num_requests_of(kv_len_, h.lists_per_kv_head, num_kv_heads);
  batch_.kv_len = kv_len_.c();
  batch_.lists_per_kv_head = h.lists_per_kv_head;
  list_indptr_.take(h.list_indptr, "list_indptr");
  list_indptr_.close_gaps();
  batch_.list_indptr = list_indptr_.c();
  const bool table = !h.block_table.is_none();
  pages_.take(table ? h.block_table : h.pages, table ? "block_table" : "pages", {}, ids_unread);
  if (!table) ids_unread ? pages_.refuse_gaps() : pages_.close_gaps();
  batch_.table_stride = table_stride_of(pages_, list_indptr_, kv_len_.size(), table, !h.pages.is_none(), !h.groups.is_none());
  batch_.pages = pages_.c();
}

void BatchArg::take_groups(nb::handle groups) {
  if (groups.is_none()) return;
  const nb::object list = nb::steal(PySequence_Tuple(groups.ptr()));
  if (!list.is_valid()) throw nb::python_error();
  const auto n = size_t(PyTuple_Size(list.ptr()));
  group_tokens_.resize(n);
  groups_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const nb::handle g = PyTuple_GetItem(list.ptr(), Py_ssize_t(i));
    group_tokens_[i].take(g.attr("tokens"), "groups: tokens");
    const int64_t size = group_tokens_[i].size();
    groups_[i] = {group_field<int32_t>(g, "level"),      group_field<int32_t>(g, "kv_begin"),    group_field<int32_t>(g, "kv_end"),
                  group_field<int32_t>(g, "kv_pos0"),    group_field<int32_t>(g, "kv_index0"),   group_field<int32_t>(g, "kv_head"),
                  group_field<int64_t>(g, "list_begin"), group_tokens_[i].as_int32(size, "row"), size};
  }
  batch_.groups = groups_.data();
  batch_.num_groups = int64_t(n);
}

void BatchArg::take(const kvloom_batch& batch, nb::handle owner) {
  batch_ = batch;
  owner_ = nb::borrow(owner);
  const int32_t n = batch.num_requests;
  total_tokens_ = batch.qo_indptr.bits == 64 ? static_cast<const int64_t*>(batch.qo_indptr.data)[n]
                                             : static_cast<const int32_t*>(batch.qo_indptr.data)[n];
}

}  // namespace kvloom::python
