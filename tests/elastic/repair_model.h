// The repair of a lane as a model, explored state by state.
//
// A few members run a few collectives of a few segments on one lane. Every step that a real worker
// takes is one step here: start a segment, finish it, freeze and report, install the next World,
// copy a result. Crashes come between any two steps; the next World is any set of members that
// have reported, dead ones included, and may come before the last one has done its plan. All
// orders of all steps are tried, breadth first, so a violation comes with a shortest trace.
//
// What decides is the product's own: FreezeWord (may this segment still be finished?), LaneLayout's
// may_start (may this one be started?) and plan_resolution (who copies and redoes what?). What is
// modelled is what they decide about: slots, tensors, and contributions as sets of members.
//
// The mutants break one rule each, in the model around the deciders. Each must be caught.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "elastic/resolution.h"

namespace hora::test {

enum class Mutant {
  none,
  no_freeze,              ///< Who has reported finishes what it has in flight.
  no_copy,                ///< The plan redoes what somebody has.
  slot_reused_early,      ///< A slot is reused when its position is done here.
  window_too_wide,        ///< A segment starts one position too early.
  plan_taken_as_done,     ///< Copies count as done when the World is installed.
  written_before_freeze,  ///< The caller's tensor is written before the count is moved.
  copy_onto_input,        ///< A copy on its way destroys the input.
  no_shut,                ///< A private result is shown before all have theirs.
};

struct ModelOptions {
  int members = 3;
  std::vector<Ending> collectives = {Ending::halves, Ending::halves};
  int segments = 3;  ///< Of each collective.
  int window = 2;
  int worlds = 3;  ///< The first one included.
  int crashes = 2;
  Mutant mutant = Mutant::none;
};

/// What the exploration found.
struct Exploration {
  std::size_t states = 0;
  std::string violation;           ///< Empty: none.
  std::vector<std::string> trace;  ///< The steps to it.
  // That what has to occur does occur.
  int most_apart = 0;            ///< Between two members of a World, in positions.
  bool plan_with_both = false;   ///< One plan with copies and redoes ...
  bool both_apart = false;       ///< ... in different collectives.
  bool restarted_whole = false;  ///< A collective of which somebody had finished a part.
  bool plan_cut_short = false;   ///< A World whose plan its successor had to finish.
};

/// Explores until there is nothing new, a violation, or `most_states` states.
Exploration explore(const ModelOptions& options, std::size_t most_states);

}  // namespace hora::test
