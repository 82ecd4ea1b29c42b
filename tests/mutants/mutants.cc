// See mutants.h.
//
// The one variable that all mutated sources ask.
#include "tests/mutants/mutants.h"

namespace hora::test {

Mutant mutant = Mutant::none;

}  // namespace hora::test
