// The C structs of what stays fixed, read from the Python objects of kvloom._spec.
#pragma once

#include "python/src/tensor_arg.h"

#include <string>

namespace kvloom::python {

/// A kvloom_spec and the strings and structs that it points at.
class SpecArg {
 public:
  explicit SpecArg(nb::handle spec);
  SpecArg(const SpecArg&) = delete;
  const kvloom_spec* c() const { return &spec_; }

 private:
  kvloom_spec spec_;
  kvloom_rope rope_;
  std::string variant_text_, variant_name_;
};

class OptionsArg {
 public:
  explicit OptionsArg(nb::handle options);
  OptionsArg(const OptionsArg&) = delete;
  kvloom_options* c() { return &options_; }

 private:
  kvloom_options options_;
  std::string cpu_target_, cuda_arch_, kernel_;
};

/// None: `rope` of mode none.
kvloom_rope rope_arg(nb::handle rope);
kvloom_capacity capacity_arg(nb::handle capacity);

/// What the checks of tensors need of a spec.
struct SpecFacts {
  int32_t num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo, q_dtype, kv_dtype, o_dtype, page_size;  // page_size 0: ragged
  explicit SpecFacts(const kvloom_spec& spec);
};

}  // namespace kvloom::python
