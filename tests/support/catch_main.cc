// The one unit that compiles Catch2's main (13 s): all test binaries link it.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
