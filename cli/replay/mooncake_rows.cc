#include "cli/replay/row_parsers.h"
#include "kvloom/base/math.h"
#include "kvloom/support/check.h"

#include <nlohmann/json.hpp>

#include <limits>

namespace kvloom::replay {
namespace {

using Json = nlohmann::json;

constexpr int32_t kBlockTokens = 512;
constexpr int64_t kMaxMilliseconds = std::numeric_limits<int64_t>::max() / 1'000'000;

/// For messages. Lists and objects by name only: they may be nested as deep as a line is long.
std::string describe(const Json& value) {
  if (!value.is_primitive()) return std::string("an ") + value.type_name();
  return excerpt(value.dump(-1, ' ', true, Json::error_handler_t::replace));
}

/// Field `name` as a whole number within [least, most]; returns "" or what is wrong.
std::string read_integer(const Json& row, const char* name, int64_t least, int64_t most, int64_t& out) {
  const auto it = row.find(name);
  if (it == row.end()) return fmt::format("{}: missing, wanted a whole number", name);
  if (!it->is_number_integer()) return fmt::format("{}: got {}, wanted a whole number", name, describe(*it));
  const bool above = it->is_number_unsigned() && it->get<uint64_t>() > uint64_t(most);
  if (above || it->get<int64_t>() < least) return fmt::format("{}: got {}, wanted {} to {}", name, describe(*it), least, most);
  out = it->get<int64_t>();
  return "";
}

std::string read_blocks(const Json& row, TraceRequest& out) {
  const auto it = row.find("hash_ids");
  if (it == row.end()) return "";
  if (!it->is_array()) return fmt::format("hash_ids: got {}, wanted a list of one id a block of {} tokens", describe(*it), kBlockTokens);
  const int64_t wanted = ceil_div<int64_t>(out.prompt_tokens, kBlockTokens);
  if (int64_t(it->size()) != wanted) {
    return fmt::format("hash_ids: got {} ids, wanted {} for an input_length of {} (one a block of {} tokens)", it->size(), wanted,
                       out.prompt_tokens, kBlockTokens);
  }
  out.blocks.reserve(it->size());
  for (const Json& id : *it) {
    if (!id.is_number_unsigned()) return fmt::format("hash_ids: got {}, wanted whole numbers of 0 or more", describe(id));
    out.blocks.push_back(id.get<uint64_t>());
  }
  return "";
}

class MooncakeParser : public RowParser {
 public:
  const char* format() const override { return "mooncake-jsonl"; }

  std::string parse(std::string_view text, TraceRequest& out) override {
    const Json row = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (row.is_discarded() || !row.is_object()) {
      return fmt::format("row: got {}, wanted a JSON object with timestamp, input_length and output_length (is it cut short?)",
                         excerpt(text));
    }
    int64_t milliseconds = 0;
    std::string why = read_integer(row, "timestamp", 0, kMaxMilliseconds, milliseconds);
    if (why.empty()) why = read_integer(row, "input_length", 1, kMaxTraceTokens, out.prompt_tokens);
    if (why.empty()) why = read_integer(row, "output_length", 0, kMaxTraceTokens, out.output_tokens);
    out.arrival_ns = milliseconds * 1'000'000;
    out.block_tokens = kBlockTokens;
    return why.empty() ? read_blocks(row, out) : why;
  }
};

}  // namespace

std::unique_ptr<RowParser> mooncake_parser() { return std::make_unique<MooncakeParser>(); }

}  // namespace kvloom::replay
