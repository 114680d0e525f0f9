// Which way tensors of a Python type are taken, found out once a type.
#pragma once

#include "python/src/dlpack.h"

#include <nanobind/nanobind.h>

namespace kvloom::python {

enum class Way { exchange, array_struct, dlpack, buffer };

struct TypeRoute {
  PyTypeObject* type = nullptr;  // a reference is held, so that the address stays its own
  Way way = Way::buffer;
  const dlpack::ExchangeApi* api = nullptr;
  bool old_dlpack = false;  // its __dlpack__ takes no max_version
  bool of_jax = false;      // its arrays can't be written, and do not say so; on a GPU it works in streams that it does not name
};

/// Valid until the next call. Needs the GIL.
TypeRoute& route_of(PyTypeObject* type);

}  // namespace kvloom::python
