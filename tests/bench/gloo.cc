// bench_gloo: Gloo's all-reduce over TCP, the peer that PyTorch uses.
//
//   bench_gloo RANK SIZE DIRECTORY ADDRESS ALGORITHM BYTES:ITERATIONS,...   per rank, together
//
// DIRECTORY is empty and shared by the ranks of one run: they meet through files in it. ADDRESS is
// the rank's own, 127.0.0.1 on one host. Gloo has an older interface of one object per buffer
// (ring-old, ring-chunked, hd) and a newer one of plain functions (ring, bcube); on few cores they
// differ by more than their algorithms do, so both are here.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <unistd.h>

#include "tests/bench/driver.h"

namespace {

using hora::bench::Allreduce;
using Context = std::shared_ptr<gloo::rendezvous::Context>;

Context connect(int rank, int size, const std::string& directory, const std::string& address) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = address;
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->setTimeout(std::chrono::seconds(60));
  gloo::rendezvous::FileStore store(directory);
  context->connectFullMesh(store, device);
  return context;
}

/// The newer interface: a function of options.
Allreduce make_function(const Context& context, gloo::AllreduceOptions::Algorithm algorithm) {
  auto tag = std::make_shared<unsigned>(0);
  return [context, algorithm, tag](float* data, std::size_t count) {
    gloo::AllreduceOptions options(context);
    options.setOutput(data, count);
    options.setAlgorithm(algorithm);
    options.setTag((*tag)++ & 0xffU);
    options.setReduceFunction([](void* out, const void* a, const void* b, std::size_t n) {
      gloo::sum<float>(out, a, b, n);
    });
    gloo::allreduce(options);
  };
}

/// The older interface: an object that is bound to its buffer.
template <template <typename> class Algorithm>
Allreduce make_object(const Context& context, float* data, std::size_t count) {
  auto algorithm = std::make_shared<Algorithm<float>>(context, std::vector<float*>{data},
                                                      static_cast<int>(count));
  return [algorithm](float*, std::size_t) { algorithm->run(); };
}

template <typename T>
using Ring = gloo::AllreduceRing<T>;
template <typename T>
using RingChunked = gloo::AllreduceRingChunked<T>;
template <typename T>
using HalvingDoubling = gloo::AllreduceHalvingDoubling<T>;

Allreduce make(const std::string& name, const Context& context, float* data, std::size_t count) {
  if (name == "ring") {
    return make_function(context, gloo::AllreduceOptions::Algorithm::RING);
  }
  if (name == "bcube") {
    return make_function(context, gloo::AllreduceOptions::Algorithm::BCUBE);
  }
  if (name == "ring-old") {
    return make_object<Ring>(context, data, count);
  }
  if (name == "ring-chunked") {
    return make_object<RingChunked>(context, data, count);
  }
  if (name == "hd") {
    return make_object<HalvingDoubling>(context, data, count);
  }
  std::fprintf(stderr, "bench_gloo: ring, ring-old, ring-chunked, bcube or hd; not '%s'\n",
               name.c_str());
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: %s RANK SIZE DIRECTORY ADDRESS ALGORITHM BYTES:ITERATIONS,...\n",
                 argv[0]);
    return 2;
  }
  const std::vector<hora::bench::Step> steps = hora::bench::steps_of(argc, argv);
  const int rank = std::atoi(argv[1]);
  const int size = std::atoi(argv[2]);
  const std::string algorithm = argv[5];
  try {
    const Context context = connect(rank, size, argv[3], argv[4]);
    hora::bench::run_driver(steps, rank, size, [&](float* data, std::size_t count) {
      return make(algorithm, context, data, count);
    });
    gloo::BarrierOptions barrier(context);
    gloo::barrier(barrier);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_gloo: rank %d: %s\n", rank, error.what());
    std::_Exit(1);
  }
  _exit(0);  // without Gloo's destructors, which race with peers that leave
}
