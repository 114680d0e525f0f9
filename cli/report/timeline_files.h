// --timeline FILE, on bench and replay: the ending says what is written.
#pragma once

#include "cli/report/timeline.h"

namespace kvloom::cli {

/// "" if `path` ends in .svg or .json; else what is wrong, for a command line.
std::string timeline_path_fault(const std::string& path);
/// Before the work: throws where a file can't be written.
void check_timeline_paths(const std::vector<std::string>& paths);
/// The picture of all steps into .svg files, their trace into .json files. Throws Error(io).
void write_timelines(const std::vector<std::string>& paths, const std::vector<Timeline>& steps);

}  // namespace kvloom::cli
