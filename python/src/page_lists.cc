// Lengths of requests whose keys lie in pages, as FlashInfer's plans are told them: kvloom.flashinfer asks once a step, in a few microseconds.
#include "python/src/errors.h"
#include "python/src/index_arg.h"
#include "python/src/ops.h"

#include <cstring>

namespace kvloom::python {
namespace {

/// Lists of page ids as they begin, and the tokens of each one's last page; Numbers: int32 or int64, by [].
template <class Numbers>
struct PageLists {
  const Numbers& begins;
  const Numbers& last;
  int64_t requests;
  const char *begins_name, *last_name;

  [[noreturn]] void refuse_begins() const {
    std::string shown;
    for (int64_t i = 0; i <= requests && i < 8; ++i) shown += (i > 0 ? ", " : "") + std::to_string(begins[i]);
    raise_value_error(std::string("`") + begins_name + "`: expected entries from 0 on that do not decrease, got [" + shown + "]" +
                      (requests >= 8 ? " ..." : ""));
  }

  template <class T>
  void write_lengths(int64_t page_size, T* out) const {
    if (page_size <= 0) raise_value_error("`page_size`: expected a number of tokens above 0, got " + std::to_string(page_size));
    if (begins[0] < 0) refuse_begins();
    for (int64_t r = 0; r < requests; ++r) {
      const int64_t pages = int64_t(begins[r + 1]) - int64_t(begins[r]), tokens = last[r];
      if (pages < 0) refuse_begins();
      if (tokens < 0 || tokens > page_size) {
        raise_value_error(std::string("`") + last_name + "`: request " + std::to_string(r) + ": expected 1 .. " + std::to_string(page_size) +
                          " (page_size), got " + std::to_string(tokens));
      }
      const int64_t length = pages > 0 ? (pages - 1) * page_size + tokens : 0;
      if (length != T(length)) {
        raise_value_error(std::string("`") + begins_name + "`: request " + std::to_string(r) + ": expected fewer tokens than 2^31, got " +
                          std::to_string(pages) + " pages of " + std::to_string(page_size));
      }
      out[r] = T(length);
    }
  }
};

/// Writes the tokens of each request into `out` [requests], int32 or int64: none without pages, else all but the last page are full. Returns how many
/// page ids there are.
int64_t page_list_lengths(nb::handle indptr, nb::handle last_page_len, int64_t page_size, nb::handle out, const std::string& indptr_name,
                          const std::string& last_name) {
  IndexArg begins, last;
  begins.take(indptr, indptr_name.c_str());
  last.take(last_page_len, last_name.c_str());
  if (begins.size() < 1) raise_value_error("`" + indptr_name + "`: expected requests + 1 entries, got none");
  if (last.size() != begins.size() - 1) {
    raise_value_error("`" + last_name + "`: expected " + std::to_string(begins.size() - 1) + " entries, one a request of `" + indptr_name +
                      "`, got " + std::to_string(last.size()));
  }
  TensorArg o;
  o.take(out, "out");
  const bool wide = o.is_type(dlpack::kInt, 64);
  if (!o.given() || !(wide || o.is_type(dlpack::kInt, 32)) || o.ndim() != 1 || o.size() != last.size() || !o.contiguous() || !o.on_host() ||
      o.read_only()) {
    raise_value_error("`out`: expected a writable, contiguous int32 or int64 array [" + std::to_string(last.size()) + "] on cpu");
  }
  void* const data = const_cast<void*>(o.data());
  const PageLists<IndexArg> lists{begins, last, last.size(), begins.name(), last.name()};
  wide ? lists.write_lengths(page_size, static_cast<int64_t*>(data)) : lists.write_lengths(page_size, static_cast<int32_t*>(data));
  return begins[last.size()];
}

bool is_plain(const TensorArg& t) { return t.given() && t.is_type(dlpack::kInt, 32) && t.ndim() == 1 && t.on_host() && t.contiguous(); }

/// page_list_lengths of int32 arrays on the host, which are copied as well: what a wrapper keeps of a step, in one call. `begins` [requests + 1], `last`
/// and `lengths` [requests] are int32 to be written. Returns how many page ids there are; -1, and nothing done: the arrays are of another kind or length.
int64_t take_page_lists(nb::handle indptr, nb::handle last_page_len, int64_t page_size, nb::handle begins_out, nb::handle last_out, nb::handle lengths_out) {
  TensorArg given[2], to[3];
  given[0].take(indptr, "indptr");
  given[1].take(last_page_len, "last_page_len");
  const int64_t requests = given[1].given() ? given[1].size() : 0;
  if (!is_plain(given[0]) || !is_plain(given[1]) || given[0].size() != requests + 1) return -1;
  int32_t* out[3];
  const nb::handle outputs[] = {begins_out, last_out, lengths_out};
  for (int i = 0; i < 3; ++i) {
    to[i].take(outputs[i], "out");
    if (!is_plain(to[i]) || to[i].read_only() || to[i].size() != requests + (i == 0 ? 1 : 0)) {
      raise_value_error("`out`: expected writable, contiguous int32 arrays of requests + 1, requests and requests on cpu");
    }
    out[i] = static_cast<int32_t*>(const_cast<void*>(to[i].data()));
  }
  std::memcpy(out[0], given[0].data(), size_t(requests + 1) * sizeof(int32_t));
  std::memcpy(out[1], given[1].data(), size_t(requests) * sizeof(int32_t));
  PageLists<int32_t*>{out[0], out[1], requests, "indptr", "last_page_len"}.write_lengths(page_size, out[2]);
  return out[0][requests];
}

}  // namespace

void bind_page_lists(nb::module_& m) {
  using nb::arg;
  m.def("page_list_lengths", &page_list_lengths, arg("indptr"), arg("last_page_len"), arg("page_size"), arg("out"), arg("indptr_name"),
        arg("last_name"));
  m.def("take_page_lists", &take_page_lists, arg("indptr"), arg("last_page_len"), arg("page_size"), arg("begins"), arg("last"), arg("lengths"));
}

}  // namespace kvloom::python
