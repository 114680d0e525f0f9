// From the values that a run names to the parameters of a user's variant, everything checked.
#pragma once

#include "kvloom/api/engine.h"

#include <string>

namespace kvloom::api {

/// The numbers that dimensions are named by.
struct NamedDims {
  int64_t qo_heads;
  int64_t kv_heads;
  int64_t requests;
};

/// Throws invalid_argument: "run: params: NAME: got X, wanted Y": a name that the variant does not have, one that is missing or there
/// twice, a wrong type, rank, shape or stride, a null pointer, a number that its type can't hold.
UserParams bind_params(const UserVariant* user, Span<const VariantParam> given, const NamedDims& dims);

const char* name_of(ParamType type);
/// "slopes f32 [num_qo_heads]".
std::string declaration_text(const ParamDecl& decl);

}  // namespace kvloom::api
