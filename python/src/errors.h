// How failures become Python exceptions: ValueError and TypeError for arguments that can never work, classes of kvloom._errors for
// refusals and faults of the device.
#pragma once

#include "kvloom/api/kvloom.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

namespace kvloom::python {

namespace nb = nanobind;

[[noreturn]] void raise_value_error(const std::string& message);
[[noreturn]] void raise_type_error(const std::string& message);

/// The class of kvloom._errors that belongs to a status.
[[noreturn]] void raise_refusal(kvloom_status status, const std::string& message);

/// Throws what belongs to a status that is not OK, with the text of kvloom_last_error(). A pending Ctrl-C comes first: the failure may be
/// its own doing (a compiler that was interrupted).
void check(kvloom_status status);

/// "ndarray", "NoneType", ...
std::string class_name(nb::handle object);

/// An argument that is a str, or a number. Raise TypeError for what is none.
std::string word_of(nb::handle value, const char* name);
float number_of(nb::handle value, const char* name);

/// A text of the library's, freed.
nb::str taken_string(char* text);

}  // namespace kvloom::python
