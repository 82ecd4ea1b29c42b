// Arguments: what a user wrote, as a Submission.
//
// The package checks what can be wrong about a tensor and gives it as (address, shape, dtype
// number). Names and factors come as the user wrote them and are checked here, where they are
// converted anyway: a small collective takes a few microseconds, and a check in Python one of them.
// An error names the argument.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include <pybind11/pybind11.h>

#include "runtime/runtime.h"

namespace hora {

/// The full names of a job's collectives: "allreduce.NAME", or "allreduce.noname.7" for one that
/// the user did not name; each kind and each process set counts for itself, because what only some
/// ranks call must not shift the names of the others. With the GIL.
class Names {
 public:
  /// Of a collective of the request's kind and set. `name`: a str or None. Raises TypeError or
  /// ValueError.
  std::string full_name(const Request& request, pybind11::handle name);
  /// Of a group of them: "grouped_allreduce.NAME"; unnamed groups count for themselves too.
  std::string group_name(const Request& member, pybind11::handle name);
  /// The number names a new set, whose unnamed collectives are counted from 1.
  void begin(SetId set) { of_others_.erase(set); }
  /// All ranks have joined, after different numbers of unnamed calls: these are counted anew, under
  /// names that no call before can have.
  void after_join() {
    ++joins_;
    unnamed_ = {};
    of_others_.clear();
  }

 private:
  struct Counts {
    std::array<std::uint64_t, 6> single{}, grouped{};  // By kind.
  };

  Counts& counts_of(SetId set) { return set == kGlobalSet ? unnamed_ : of_others_[set]; }

  /// The front of an unnamed call's name: "noname.", "noname.j1." after a join.
  [[nodiscard]] std::string unnamed_prefix() const;

  std::uint64_t joins_ = 0;
  Counts unnamed_;                     // Of set 0.
  std::map<SetId, Counts> of_others_;  // Of the others.
};

/// The full name of the `index`-th of `count` members of a group: "grouped_allreduce.NAME_1of3".
std::string member_name(const std::string& group, std::size_t index, std::size_t count);

/// A factor; raises TypeError unless it is a number. `argument`: its name.
double factor_from(pybind11::handle value, const char* argument);

/// The dimensions of a tensor, or the splits of an alltoall.
std::vector<std::int64_t> shape_from(const pybind11::tuple& shape);

/// Where the bytes of a C-contiguous buffer start. Raises BufferError or ValueError if it is none.
std::uintptr_t address_of(pybind11::handle buffer);

}  // namespace hora
