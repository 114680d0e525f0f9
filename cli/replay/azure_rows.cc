#include "cli/replay/row_parsers.h"
#include "kvloom/support/check.h"

#include <charconv>

namespace kvloom::replay {
namespace {

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

/// Takes the next comma-separated field off `rest`; false when there is none left.
bool next_field(std::string_view& rest, bool& more, std::string_view& field) {
  if (!more) return false;
  const size_t comma = rest.find(',');
  more = comma != std::string_view::npos;
  field = trim(rest.substr(0, comma));
  rest = more ? rest.substr(comma + 1) : std::string_view{};
  return true;
}

/// `digits` decimal digits at the front of `text`, taken off.
bool take_number(std::string_view& text, size_t digits, int64_t& out) {
  if (text.size() < digits) return false;
  out = 0;
  for (size_t i = 0; i < digits; ++i) {
    if (text[i] < '0' || text[i] > '9') return false;
    out = out * 10 + (text[i] - '0');
  }
  text.remove_prefix(digits);
  return true;
}

bool take(std::string_view& text, char c) {
  if (text.empty() || text.front() != c) return false;
  text.remove_prefix(1);
  return true;
}

/// Days since 1970-01-01 of a Gregorian date: years are counted from March, so that the leap day ends one.
int64_t days_since_1970(int64_t year, int64_t month, int64_t day) {
  const int64_t y = month > 2 ? year : year - 1;
  const int64_t m = month > 2 ? month - 3 : month + 9;
  const int64_t leap_days = y / 4 - y / 100 + y / 400;
  const int64_t day_of_year = (153 * m + 2) / 5 + day - 1;
  return y * 365 + leap_days + day_of_year - 719468;
}

bool take_fraction(std::string_view& text, int64_t& ns) {
  ns = 0;
  if (!take(text, '.')) return true;
  int64_t weight = 100'000'000;
  size_t digits = 0;
  for (; !text.empty() && text.front() >= '0' && text.front() <= '9'; text.remove_prefix(1), ++digits, weight /= 10) {
    ns += (text.front() - '0') * weight;
  }
  return digits > 0;
}

/// "", "Z" or "+hh:mm" / "-hh:mm": seconds east of Greenwich.
bool take_offset(std::string_view& text, int64_t& seconds) {
  seconds = 0;
  if (text.empty() || take(text, 'Z')) return true;
  const bool west = text.front() == '-';
  if (!take(text, '+') && !take(text, '-')) return false;
  int64_t hours, minutes;
  if (!take_number(text, 2, hours) || !take(text, ':') || !take_number(text, 2, minutes)) return false;
  if (hours > 14 || minutes > 59) return false;
  seconds = (hours * 60 + minutes) * (west ? -60 : 60);
  return true;
}

struct Columns {
  int time = -1, context = -1, generated = -1;
};

class AzureParser : public RowParser {
 public:
  explicit AzureParser(const Columns& columns) : columns_(columns) {}
  const char* format() const override { return "azure-csv"; }

  std::string parse(std::string_view row, TraceRequest& out) override {
    std::string_view time, context, generated, field, rest = row;
    bool more = true;
    int found = 0;
    for (int i = 0; next_field(rest, more, field); ++i) {
      std::string_view* const slot = i == columns_.time        ? &time
                                     : i == columns_.context   ? &context
                                     : i == columns_.generated ? &generated
                                                               : nullptr;
      if (slot) *slot = field, ++found;
    }
    if (found < 3) return fmt::format("row: got {}, wanted a time, a context and a generated length (is it cut short?)", excerpt(row));
    if (!parse_timestamp(time, out.arrival_ns)) {
      return fmt::format("TIMESTAMP: got {}, wanted a time like 2023-11-16 18:15:46.6805900", excerpt(time));
    }
    std::string why = parse_tokens(context, "ContextTokens", 1, out.prompt_tokens);
    return why.empty() ? parse_tokens(generated, "GeneratedTokens", 0, out.output_tokens) : why;
  }

 private:
  Columns columns_;
};

}  // namespace

bool parse_timestamp(std::string_view text, int64_t& ns) {
  int64_t year, month, day, hour, minute, second, fraction, offset;
  if (!take_number(text, 4, year) || !take(text, '-') || !take_number(text, 2, month) || !take(text, '-') || !take_number(text, 2, day)) {
    return false;
  }
  if (!take(text, ' ') && !take(text, 'T')) return false;
  if (!take_number(text, 2, hour) || !take(text, ':') || !take_number(text, 2, minute) || !take(text, ':') ||
      !take_number(text, 2, second) || !take_fraction(text, fraction) || !take_offset(text, offset) || !text.empty()) {
    return false;
  }
  constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
  if (year < 1970 || year > 2261 || month < 1 || month > 12 || day < 1 || day > kDays[month - 1] + (leap && month == 2 ? 1 : 0))
    return false;
  if (hour > 23 || minute > 59 || second > 60) return false;
  const int64_t seconds = days_since_1970(year, month, day) * 86400 + hour * 3600 + minute * 60 + second - offset;
  ns = seconds * 1'000'000'000 + fraction;
  return ns >= 0;
}

std::string parse_tokens(std::string_view text, const char* name, int64_t least, int64_t& out) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool digits =
      !text.empty() && text.find_first_not_of("0123456789", text[0] == '-' ? 1 : 0) == std::string_view::npos && text != "-";
  if (!digits) return fmt::format("{}: got {}, wanted a whole number", name, excerpt(text));
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > kMaxTraceTokens) {
    return fmt::format("{}: got {}, wanted {} to {} tokens", name, excerpt(text), least, kMaxTraceTokens);
  }
  out = value;
  return "";
}

std::unique_ptr<RowParser> azure_parser(std::string_view header, std::string& error) {
  Columns columns;
  std::string_view rest = header, field;
  bool more = true;
  for (int i = 0; next_field(rest, more, field); ++i) {
    if (field == "TIMESTAMP") columns.time = i;
    if (field == "ContextTokens") columns.context = i;
    if (field == "GeneratedTokens") columns.generated = i;
  }
  if (columns.time < 0 || columns.context < 0 || columns.generated < 0) {
    error = "got " + excerpt(header);
    return nullptr;
  }
  return std::make_unique<AzureParser>(columns);
}

}  // namespace kvloom::replay
