#include "tests/bench/driver.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <sys/resource.h>

#include "tests/bench/samples.h"

namespace hora::bench {
namespace {

double cpu_us_of_process() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& t) {
    return 1e6 * static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec);
  };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

/// One checked call: a library that is fast because it does not add has no place here.
void check_sum(const Allreduce& allreduce, std::vector<float>& buffer, int rank, int size) {
  std::fill(buffer.begin(), buffer.end(), static_cast<float>(rank + 1));
  allreduce(buffer.data(), buffer.size());
  const float expected = static_cast<float>(size * (size + 1) / 2);
  if (!std::all_of(buffer.begin(), buffer.end(), [&](float x) { return x == expected; })) {
    std::fprintf(stderr, "rank %d: wrong sum of %zu floats\n", rank, buffer.size());
    std::_Exit(1);
  }
}

void measure(const Step& step, int rank, int size, const Prepare& prepare, const Prepare& lossy) {
  std::vector<float> buffer(std::max<std::size_t>(step.bytes / sizeof(float), 1));
  const Allreduce allreduce = prepare(buffer.data(), buffer.size());
  check_sum(allreduce, buffer, rank, size);
  std::fill(buffer.begin(), buffer.end(), 0.0F);
  const Allreduce timed = lossy ? lossy(buffer.data(), buffer.size()) : allreduce;
  // The last of these calls is the barrier: none returns before all ranks have come.
  for (int i = 0; i < std::max(2, step.iterations / 10); ++i) {
    timed(buffer.data(), buffer.size());
  }
  std::vector<double> samples(static_cast<std::size_t>(step.iterations));
  const double cpu_before = cpu_us_of_process();
  auto before = std::chrono::steady_clock::now();
  for (double& sample : samples) {
    timed(buffer.data(), buffer.size());
    const auto now = std::chrono::steady_clock::now();
    sample = std::chrono::duration<double, std::micro>(now - before).count();
    before = now;
  }
  // The library itself adds up the ranks' CPU times; float32 is exact enough for three digits.
  std::fill(buffer.begin(), buffer.end(), 0.0F);
  buffer[0] = static_cast<float>((cpu_us_of_process() - cpu_before) / step.iterations);
  allreduce(buffer.data(), buffer.size());
  if (rank == 0) {
    const Quantiles q = quantiles(samples);
    std::printf(
        "{\"bytes\": %zu, \"iterations\": %d, \"median_us\": %.3f, \"p10_us\": %.3f, "
        "\"p90_us\": %.3f, \"mean_us\": %.3f, \"cpu_us\": %.3f}\n",
        step.bytes, step.iterations, q.median, q.p10, q.p90, q.mean,
        static_cast<double>(buffer[0]));
    std::fflush(stdout);
  }
}

}  // namespace

std::vector<Step> steps_of(int argc, char** argv) {
  std::vector<Step> steps;
  const char* text = argc > 1 ? argv[argc - 1] : "";
  while (*text != '\0') {
    char* end = nullptr;
    Step step;
    step.bytes = std::strtoull(text, &end, 10);
    step.iterations = *end == ':' ? static_cast<int>(std::strtol(end + 1, &end, 10)) : 0;
    if (step.iterations < 1 || (*end != ',' && *end != '\0')) {
      steps.clear();
      break;
    }
    steps.push_back(step);
    text = *end == ',' ? end + 1 : end;
  }
  if (steps.empty()) {
    std::fprintf(stderr, "%s: the last argument is BYTES:ITERATIONS,...\n", argv[0]);
    std::exit(2);
  }
  return steps;
}

void run_driver(const std::vector<Step>& steps, int rank, int size, const Prepare& prepare,
                const Prepare& lossy) {
  for (const Step& step : steps) {
    measure(step, rank, size, prepare, lossy);
  }
}

}  // namespace hora::bench
