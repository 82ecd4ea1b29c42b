// Misspelt knobs: a variable that nobody reads says nothing, so its author must be told.
//
// HORA_FUSON_BYTES=1M sets nothing, and the job runs as if it had not been written. So at the start
// the names of the environment that begin with HORA_ are compared with those that Hora reads; one
// that is none of them is reported with the nearest that is, by the number of letters to change.
// Pure; the environment comes in as a list of names.
#pragma once

#include <string>
#include <vector>

namespace hora {

/// A sentence for every name that begins with HORA_ and is read by nobody.
std::vector<std::string> unknown_variables(const std::vector<std::string>& names);

}  // namespace hora
