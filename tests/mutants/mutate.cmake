# Copies SOURCE to OUTPUT and makes the rules in it that recovery rests on mutable: `mutant` (mutants.h) takes
# one of them out. So the product has no hook for its tests, and a mutant is the product in all but one rule.
#
# A rule is found by its text, exactly once; whoever changes that text says here what the rule is now.
file(READ "${SOURCE}" text)
get_filename_component(name "${SOURCE}" NAME)

function(mutate original mutated)
  string(FIND "${text}" "${original}" first)
  string(FIND "${text}" "${original}" last REVERSE)
  if(first EQUAL -1 OR NOT first EQUAL last)
    message(FATAL_ERROR "${SOURCE}: this must be there once, for tests/mutants: ${original}")
  endif()
  string(REPLACE "${original}" "${mutated}" text "${text}")
  set(text "${text}" PARENT_SCOPE)
endfunction()

if(name STREQUAL "executor.cc")
  # R1: a slot waits for every member.
  mutate("if (gated || !options_.layout.may_start(lane.next_position, floor)) {"
         "if (gated || (mutant != Mutant::early_reuse && !options_.layout.may_start(lane.next_position, floor))) {")
  # R5: the caller's tensor is overwritten when the segment is done, not before.
  mutate("if (!lane.word.advance()) break;"
         "if (mutant == Mutant::early_unpack) unpack(lane, instance);\n    if (!lane.word.advance()) break;")
elseif(name STREQUAL "executor_repair.cc")
  # R2: who is frozen finishes nothing.
  mutate("lane->word.freeze(options_.epoch);"
         "if (mutant != Mutant::no_freeze) lane->word.freeze(options_.epoch);")
elseif(name STREQUAL "resolution.cc")
  # R4: what somebody has is copied, and not redone.
  mutate("resolved.redo = {complete ? extent.highest : begin, end};"
         "resolved.redo = {!complete ? begin : mutant == Mutant::no_copy ? extent.lowest : extent.highest, end};")
  mutate("if (complete) resolved.copy =" "if (complete && mutant != Mutant::no_copy) resolved.copy =")
elseif(name STREQUAL "encoded_segment.cc")
  # R6: a shadow becomes the residual with the result, and only then.
  mutate("run.suspended[index_] = std::move(shadow_);"
         "if (mutant == Mutant::residual_forgotten) return abort();
  if (mutant == Mutant::residual_twice) return run.residuals->commit(std::move(shadow_));
  run.suspended[index_] = std::move(shadow_);")
else()
  message(FATAL_ERROR "no rules for ${SOURCE}")
endif()

file(WRITE "${OUTPUT}" "#include \"tests/mutants/mutants.h\"\nusing hora::test::Mutant;\nusing hora::test::mutant;\n${text}")
