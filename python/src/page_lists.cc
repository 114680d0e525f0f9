// Lengths of requests whose keys lie in pages, as FlashInfer's plans are told them: kvloom.flashinfer asks once a step, in a few microseconds.
#include "python/src/errors.h"
#include "python/src/index_arg.h"
#include "python/src/ops.h"

namespace kvloom::python {
namespace {

[[noreturn]] void refuse_begins(const IndexArg& begins) {
  std::string shown;
  for (int64_t i = 0; i < begins.size() && i < 8; ++i) shown += (i > 0 ? ", " : "") + std::to_string(begins[i]);
  raise_value_error(std::string("`") + begins.name() + "`: expected entries from 0 on that do not decrease, got [" + shown + "]" +
                    (begins.size() > 8 ? " ..." : ""));
}

template <class T>
void write_lengths(const IndexArg& begins, const IndexArg& last, int64_t page_size, T* out) {
  for (int64_t r = 0; r < last.size(); ++r) {
    const int64_t pages = begins[r + 1] - begins[r], tokens = last[r];
    if (pages < 0) refuse_begins(begins);
    if (tokens < 0 || tokens > page_size) {
      raise_value_error(std::string("`") + last.name() + "`: request " + std::to_string(r) + ": expected 1 .. " + std::to_string(page_size) +
                        " (page_size), got " + std::to_string(tokens));
    }
    const int64_t length = pages > 0 ? (pages - 1) * page_size + tokens : 0;
    if (length != T(length)) {
      raise_value_error(std::string("`") + begins.name() + "`: request " + std::to_string(r) + ": expected fewer tokens than 2^31, got " +
                        std::to_string(pages) + " pages of " + std::to_string(page_size));
    }
    out[r] = T(length);
  }
}

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
  if (page_size <= 0) raise_value_error("`page_size`: expected a number of tokens above 0, got " + std::to_string(page_size));
  if (begins[0] < 0) refuse_begins(begins);
  TensorArg o;
  o.take(out, "out");
  const bool wide = o.is_type(dlpack::kInt, 64);
  if (!o.given() || !(wide || o.is_type(dlpack::kInt, 32)) || o.ndim() != 1 || o.size() != last.size() || !o.contiguous() || !o.on_host() ||
      o.read_only()) {
    raise_value_error("`out`: expected a writable, contiguous int32 or int64 array [" + std::to_string(last.size()) + "] on cpu");
  }
  void* const data = const_cast<void*>(o.data());
  wide ? write_lengths(begins, last, page_size, static_cast<int64_t*>(data)) : write_lengths(begins, last, page_size, static_cast<int32_t*>(data));
  return begins[last.size()];
}

}  // namespace

void bind_page_lists(nb::module_& m) {
  using nb::arg;
  m.def("page_list_lengths", &page_list_lengths, arg("indptr"), arg("last_page_len"), arg("page_size"), arg("out"), arg("indptr_name"),
        arg("last_name"));
}

}  // namespace kvloom::python
