#include "cli/replay/step_export.h"

#include "kvloom/support/check.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace kvloom::replay {

StepExport::StepExport(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "wb")) {
  if (!file_)
    fail(ErrorCode::io, "--export {}: cannot open: {}; name a file in a folder that exists and can be written", path, std::strerror(errno));
}

StepExport::~StepExport() {
  if (file_) std::fclose(file_);
}

void StepExport::check(bool ok) const {
  if (!ok) fail(ErrorCode::io, "--export {}: write failed: {}; free some space or name another file", path_, std::strerror(errno));
}

void StepExport::write(int64_t step_number, int64_t now_ns, const Batcher& batcher, const Step& step, int32_t page_size) {
  owner_.clear();
  std::vector<int32_t> q_len, kv_len, shared_with, shared_tokens;
  for (size_t i = 0; i < step.slices.size(); ++i) {
    const std::vector<int32_t>& pages = batcher.sequences()[size_t(step.slices[i].sequence)].pages;
    // A page is shared only together with all pages before it: the shared ones come first.
    size_t shared = 0;
    int32_t with = -1;
    while (shared < pages.size()) {
      const auto it = owner_.find(pages[shared]);
      if (it == owner_.end()) break;
      with = it->second;
      ++shared;
    }
    for (size_t p = shared; p < pages.size(); ++p) owner_.emplace(pages[p], int32_t(i));
    q_len.push_back(step.slices[i].q_len);
    kv_len.push_back(step.slices[i].kv_len);
    shared_with.push_back(with);
    shared_tokens.push_back(std::min(int32_t(shared) * page_size, step.slices[i].kv_len));
  }
  const std::string text = fmt::format(
      "{{\"step\": {}, \"time_us\": {:.1f}, \"page_size\": {}, \"q_len\": [{}], \"kv_len\": [{}], \"shared_with\": [{}], "
      "\"shared_tokens\": [{}]}}\n",
      step_number, double(now_ns) * 1e-3, page_size, fmt::join(q_len, ", "), fmt::join(kv_len, ", "), fmt::join(shared_with, ", "),
      fmt::join(shared_tokens, ", "));
  check(std::fwrite(text.data(), 1, text.size(), file_) == text.size());
}

void StepExport::close() {
  std::FILE* const file = file_;
  file_ = nullptr;
  if (file) check(std::fclose(file) == 0);
}

}  // namespace kvloom::replay
