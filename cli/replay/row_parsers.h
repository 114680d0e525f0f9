// The two trace formats, row by row.
#pragma once

#include "cli/replay/trace.h"

namespace kvloom::replay {

/// `header`: the CSV's first line; columns are found by name, others are ignored. Returns nullptr and says why in `error` if one is
/// missing.
std::unique_ptr<RowParser> azure_parser(std::string_view header, std::string& error);
std::unique_ptr<RowParser> mooncake_parser();

/// A whole number of tokens within [least, kMaxTraceTokens], in decimal digits. Returns "" or what is wrong with the field `name`.
std::string parse_tokens(std::string_view text, const char* name, int64_t least, int64_t& out);

/// "YYYY-MM-DD hh:mm:ss[.fraction]" (or with T; an offset "+00:00" or "Z" may follow) as nanoseconds since 1970. Fractions beyond a
/// nanosecond are cut. Returns false if it is not a date and time of the years 1970 to 2261.
bool parse_timestamp(std::string_view text, int64_t& ns);

}  // namespace kvloom::replay
