// Driver: what every all-reduce benchmark program does, whatever library is under it.
//
// Numbers of two libraries can be put side by side only if they were measured in the same way. So a
// program hands in one function, "all-reduce this float32 buffer in place, as a sum", and the rest
// is here, and the same again in Python (rank.py):
//
//   per size   one checked call (rank r holds r+1, everybody expects p(p+1)/2)
//              the buffer is zeroed, so that sums of sums stay finite
//              a tenth of the iterations as warm-up
//              a barrier, then timed calls back to back, each sample from end to end
//
// Rank 0 prints one line of JSON per size: quantiles of its samples, and the user and system time
// of all ranks per call, because latency can be bought with cores.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace hora::bench {

/// One size to measure.
struct Step {
  std::size_t bytes = 0;
  int iterations = 0;
};

/// Reads `BYTES:ITERATIONS,...` from the last command line argument; ends the program with a usage
/// text if that is not what it is.
std::vector<Step> steps_of(int argc, char** argv);

/// Sums `count` floats over all ranks in place; ends the program if it cannot.
using Allreduce = std::function<void(float* data, std::size_t count)>;

/// A buffer that all calls of one size use; some libraries prepare themselves for it.
using Prepare = std::function<Allreduce(float* data, std::size_t count)>;

/// Measures all steps. Called on every rank with the same steps. `lossy`: what is timed instead,
/// if it is there: it comes only near the sum, brings its own numbers and checks itself.
void run_driver(const std::vector<Step>& steps, int rank, int size, const Prepare& prepare,
                const Prepare& lossy = {});

}  // namespace hora::bench
