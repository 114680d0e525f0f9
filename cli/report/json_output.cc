#include "cli/report/json_output.h"

#include "cli/report/text_output.h"

namespace kvloom::cli {

void write_json(const std::string& path, const nlohmann::ordered_json& value) { write_text("--json", path, value.dump(2) + "\n"); }

}  // namespace kvloom::cli
