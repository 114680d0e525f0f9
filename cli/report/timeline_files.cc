#include "cli/report/timeline_files.h"

#include "cli/report/text_output.h"

namespace kvloom::cli {
namespace {

constexpr const char* kOption = "--timeline";

}  // namespace

std::string timeline_path_fault(const std::string& path) {
  if (path.ends_with(".svg") || path.ends_with(".json")) return "";
  return "got '" + path + "', wanted a file name that ends in .svg (a picture) or .json (a Chrome trace)";
}

void check_timeline_paths(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) check_target(kOption, path);
}

void write_timelines(const std::vector<std::string>& paths, const std::vector<Timeline>& steps) {
  for (const std::string& path : paths) write_text(kOption, path, path.ends_with(".svg") ? timeline_svg(steps) : chrome_trace(steps));
}

}  // namespace kvloom::cli
