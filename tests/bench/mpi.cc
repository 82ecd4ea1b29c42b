// bench_mpi: MPI_Allreduce, the fastest peer on one host and the one that never sleeps.
//
//   mpirun -np P bench_mpi BYTES:ITERATIONS,...
//
// Which algorithm and which transport run is said to mpirun (allreduce.py has the rows). Every rank
// polls while it waits: read its times beside its CPU.
#include <cstddef>
#include <cstdio>
#include <vector>

#include <mpi.h>

#include "tests/bench/driver.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);  // NOLINT: MPI's own errors end the job
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const std::vector<hora::bench::Step> steps = hora::bench::steps_of(argc, argv);
  hora::bench::run_driver(steps, rank, size, [](float*, std::size_t) {
    return [](float* data, std::size_t count) {
      MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
    };
  });
  MPI_Finalize();
  return 0;
}
