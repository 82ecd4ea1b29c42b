// Reads the files of --config-file: the part of YAML that such a file needs, and nothing else.
//
//   # tuned for the small cluster
//   controller: gloo
//   params:
//     fusion_threshold_mb: 32
//   timeline:
//     filename: "/tmp/trace.json"
//
// Two levels of "key: value", comments, and quotes around a value. Lists, braces, anchors, tags,
// block texts and a third level are refused by line: a setting that is misread is worse than one
// that has to be written in another way. Pure: text in, settings out.
#pragma once

#include <string_view>
#include <vector>

#include "launcher/tuning.h"
#include "runtime/base/result.h"

namespace hora {

/// The settings of a file in the order of its lines; a key of the second level is
/// "section.key". Keys without a value (or with ~ or null) are left out. `name` is the
/// file's name in errors, which begin "name:line:".
Result<std::vector<FileSetting>> parse_config_file(std::string_view text, std::string_view name);

}  // namespace hora
