#include "cli/bench/trace_steps.h"

#include "kvloom/support/check.h"
#include "kvloom/support/files.h"

#include <algorithm>
#include <numeric>
#include <sstream>

namespace kvloom::cli {
namespace {

constexpr const char* kRemedy = "name a file that `kvloom replay --export` or benchmarks/sample_steps.py wrote";

using Json = nlohmann::ordered_json;

std::vector<int32_t> numbers(const Json& line, const char* key, const std::string& where) {
  const bool there = line.contains(key) && line[key].is_array() &&
                     std::all_of(line[key].begin(), line[key].end(), [](const Json& x) { return x.is_number_integer(); });
  require(there, "bench: --steps {}: {}: got none, wanted a list of whole numbers; {}", where, key, kRemedy);
  return line[key].get<std::vector<int32_t>>();
}

void check_step(const GpuShape& s, const std::string& where) {
  const size_t n = s.q_len.size();
  require(n > 0 && s.kv_len.size() == n && s.shared_with.size() == n && s.shared_tokens.size() == n,
          "bench: --steps {}: got {} q_len, {} kv_len, {} shared_with and {} shared_tokens, wanted as many of each, 1 or more; {}", where, n, s.kv_len.size(),
          s.shared_with.size(), s.shared_tokens.size(), kRemedy);
  for (size_t i = 0; i < n; ++i) {
    require(s.q_len[i] >= 1 && s.kv_len[i] >= s.q_len[i], "bench: --steps {}: request {}: got q_len {} and kv_len {}, wanted 1 <= q_len <= kv_len; {}", where,
            i, s.q_len[i], s.kv_len[i], kRemedy);
    const int32_t with = s.shared_with[i];
    require(with >= -1 && with < int32_t(i), "bench: --steps {}: request {}: shared_with: got {}, wanted an earlier request or -1; {}", where, i, with, kRemedy);
    if (with < 0) continue;
    require(s.shared_tokens[i] >= 0 && s.shared_tokens[i] <= std::min(s.kv_len[i], s.kv_len[size_t(with)]),
            "bench: --steps {}: request {}: shared_tokens: got {}, wanted 0 to the fewest tokens of both; {}", where, i, s.shared_tokens[i], kRemedy);
  }
}

TraceStep step_of(const Json& line, const AttentionSpec& spec, const std::string& where) {
  TraceStep t;
  GpuShape& s = t.shape;
  s.spec = spec;
  s.spec.page_size = line.value("page_size", 0);
  require(s.spec.page_size >= 1, "bench: --steps {}: page_size: got {}, wanted 1 or more; {}", where, s.spec.page_size, kRemedy);
  s.q_len = numbers(line, "q_len", where);
  s.kv_len = numbers(line, "kv_len", where);
  s.shared_with = numbers(line, "shared_with", where);
  s.shared_tokens = numbers(line, "shared_tokens", where);
  check_step(s, where);
  t.kind = kind_of_step(s.q_len);
  t.weight = line.value("weight", 1.0);
  require(t.weight > 0, "bench: --steps {}: weight: got {}, wanted a number above 0; {}", where, t.weight, kRemedy);
  s.name = "step-" + std::to_string(line.value("step", int64_t(0))) + "-" + t.kind;
  s.memory_bound = true;
  return t;
}

}  // namespace

const char* kind_of_step(const std::vector<int32_t>& q_len) {
  const auto decodes = std::count(q_len.begin(), q_len.end(), 1);
  return decodes == std::ptrdiff_t(q_len.size()) ? "decode" : decodes > 0 ? "mixed" : "prefill";
}

std::vector<TraceStep> read_steps(const std::string& path, const AttentionSpec& spec) {
  std::string text, why;
  if (!read_file(path, text, why)) fail(ErrorCode::io, "bench: --steps {}: {}; {}", path, why, kRemedy);
  std::vector<TraceStep> steps;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = path + ":" + std::to_string(++number);
    if (line.empty()) continue;
    const Json j = Json::parse(line, nullptr, false);
    require(j.is_object(), "bench: --steps {}: got no JSON object, wanted a step; {}", where, kRemedy);
    steps.push_back(step_of(j, spec, where));
    require(steps.back().shape.spec == steps.front().shape.spec, "bench: --steps {}: page_size: got {}, wanted {}, as on the first line; {}", where,
            steps.back().shape.spec.page_size, steps.front().shape.spec.page_size, kRemedy);
  }
  require(!steps.empty(), "bench: --steps {}: got no step, wanted one or more; {}", path, kRemedy);
  return steps;
}

Capacity capacity_of(const std::vector<TraceStep>& steps) {
  Capacity c;
  for (const TraceStep& t : steps) {
    const auto sum = [](const std::vector<int32_t>& x) { return std::accumulate(x.begin(), x.end(), int64_t(0)); };
    c.max_requests = std::max(c.max_requests, int32_t(t.shape.q_len.size()));
    c.max_query_tokens = std::max(c.max_query_tokens, sum(t.shape.q_len));
    c.max_kv_tokens = std::max(c.max_kv_tokens, sum(t.shape.kv_len));
  }
  c.max_level_rows = c.max_query_tokens + 2 * int64_t(c.max_requests);
  return c;
}

nlohmann::ordered_json to_json(const TraceStep& t) {
  Json j = to_json(t.shape);
  j["kind"] = t.kind;
  j["weight"] = t.weight;
  return j;
}

}  // namespace kvloom::cli
