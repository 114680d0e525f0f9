// kvloom._core: the C interface for Python. What users call and read is in python/kvloom; here are the conversions.
#include "python/src/block_sparse.h"
#include "python/src/engine.h"
#include "python/src/ops.h"

NB_MODULE(_core, m) {
  nanobind::set_leak_warnings(false);  // a program that ends with engines alive is no fault
  kvloom::python::prepare_tensors();
  kvloom::python::bind_engine(m);
  kvloom::python::bind_block_sparse(m);
  kvloom::python::bind_ops(m);
  kvloom::python::bind_attention(m);
  kvloom::python::bind_page_lists(m);
  m.def("version", [] { return kvloom_version(); });
}
