// What serving needs around attention: merges, appends, rotation, masks, one-call attention, lengths of page lists.
#pragma once

#include <nanobind/nanobind.h>

namespace kvloom::python {

void bind_ops(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_page_lists(nanobind::module_& m);

}  // namespace kvloom::python
