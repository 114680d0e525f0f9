#include "cli/bench/peers.h"

#include "kvloom/support/check.h"
#include "kvloom/support/files.h"

#include <cmath>

namespace kvloom::cli {
namespace {

constexpr const char* kRemedy = "name what benchmarks/peers/torch_cuda.py wrote";

}  // namespace

PeerResults::PeerResults(const std::string& path, const std::string& gpu) : path_(path) {
  std::string text, why;
  if (!read_file(path, text, why)) fail(ErrorCode::io, "bench: --peers {}: {}; {}", path, why, kRemedy);
  file_ = nlohmann::ordered_json::parse(text, nullptr, false);
  const bool whole =
      file_.is_object() && file_.contains("rows") && file_["rows"].is_array() && file_.contains("gpu") && file_["gpu"].is_string();
  require(whole, "bench: --peers {}: got no results of peers, wanted JSON with gpu and rows; {}", path, kRemedy);
  const std::string theirs = file_["gpu"].get<std::string>();
  require(theirs == gpu, "bench: --peers {}: got figures of '{}', wanted some of this GPU, '{}'; measure the peers here", path, theirs,
          gpu);
  require(file_.value("shrink", 1) == 1, "bench: --peers {}: got a dry run on small shapes, wanted figures; leave --shrink out", path);
  for (const auto& row : file_["rows"]) {
    const bool named =
        row.is_object() && row.contains("shape") && row["shape"].is_string() && row.contains("peer") && row["peer"].is_string();
    require(named && (row.contains("why") || row.contains("median_us")),
            "bench: --peers {}: got the row {}, wanted shape, peer, and median_us or why; {}", path, row.dump(), kRemedy);
  }
}

nlohmann::ordered_json PeerResults::facts() const {
  nlohmann::ordered_json facts;
  for (const char* key : {"machine", "protocol", "not_installed"}) {
    if (file_.contains(key)) facts[key] = file_[key];
  }
  return facts;
}

nlohmann::ordered_json PeerResults::of(const GpuShape& s) const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  const double flop = flop_of(s);
  for (const auto& row : file_["rows"]) {
    if (row["shape"] != s.name) continue;
    nlohmann::ordered_json r = row;
    const double theirs = r.value("flop", flop);
    require(std::abs(theirs - flop) <= 1e-9 * flop,
            "bench: --peers {}: {}: got {} FLOP, wanted the {} of this row; measure the peers with this version's rows", path_, s.name,
            theirs, flop);
    r.erase("shape");
    r.erase("flop");
    list.push_back(r);
  }
  return list;
}

}  // namespace kvloom::cli
