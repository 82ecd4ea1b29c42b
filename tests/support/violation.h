// Violation: a rule that a walk of a test has seen broken.
//
// What a walk demands is a value to whoever walks: a test of the product lets it end the test, and
// a test of a mutant, which is the product with one rule taken out, expects it.
#pragma once

#include <stdexcept>
#include <string>

namespace hora::test {

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void demand(bool holds, const char* what) {
  if (!holds) throw Violation(what);
}
inline void demand(bool holds, const std::string& what) {
  if (!holds) throw Violation(what);
}

}  // namespace hora::test
