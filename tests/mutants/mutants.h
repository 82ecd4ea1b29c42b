// Mutants: which rule of the executor or the plan is taken out.
//
// mutate.cmake says where each stands. The walks of tests/support must fail with every one of them.
#pragma once

namespace hora::test {

enum class Mutant {
  none,
  no_freeze,           ///< A rank finishes segments after it was asked how far it is.
  early_reuse,         ///< A slot is used again when its segment is done here, not everywhere.
  no_copy,             ///< What nobody lacks is kept, all else redone, whoever has shown it.
  early_unpack,        ///< The caller's tensor is overwritten before the segment is done.
  residual_twice,      ///< A residual is committed when its World ends, and again with the redo.
  residual_forgotten,  ///< A result comes as a copy, without the residual that belongs to it.
};

/// Of this process; the tests of mutants have one thread.
extern Mutant mutant;

}  // namespace hora::test
