// What this machine is called, and where on it we are.
//
// Whether a host of the command line is this one decides how its workers are started, and names
// are many: "localhost", the name of the machine, any address of any interface, and whatever a
// resolver turns into one of these. All of them count, as they do in Horovod; two of them are two
// hosts of the job.
#pragma once

#include <string>

namespace hora {

/// The machine's own name; empty if it has none.
std::string own_name();

/// Whether `name` is a name or an address of this machine; asks the resolver. A name
/// that nobody knows is not: ssh may know it.
bool is_this_host(const std::string& name);

/// This program's file.
std::string own_program();

/// Where this process runs: `told` (a shell's PWD) if that is the same place, which keeps a
/// user's links.
std::string current_directory(const std::string& told);

}  // namespace hora
