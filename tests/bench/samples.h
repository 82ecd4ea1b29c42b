// Samples: the few statistics that every benchmark driver here prints.
//
// A mean hides two modes and a minimum hides the tail, so a driver keeps every sample and reports
// quantiles. The quantile of n sorted samples at q is the one at index floor(q * (n - 1)): an
// observed value, no interpolation, the same rule in all drivers so that their numbers can be put
// side by side.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace hora::bench {

struct Quantiles {
  double p10 = 0, p25 = 0, median = 0, p75 = 0, p90 = 0, mean = 0;
};

/// Quantiles of at least one sample, in the samples' unit.
inline Quantiles quantiles(std::vector<double> samples) {
  if (samples.empty()) {
    return {};
  }
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double q) {
    return samples[static_cast<std::size_t>(q * static_cast<double>(samples.size() - 1))];
  };
  double sum = 0;
  for (const double sample : samples) {
    sum += sample;
  }
  return {at(0.10), at(0.25), at(0.50),
          at(0.75), at(0.90), sum / static_cast<double>(samples.size())};
}

/// Seconds of a call, by the fastest tenth of batches of `calls`, repeated for `budget_s`: the
/// machine has other things to do.
template <class Call>
double fast_call_seconds(int calls, double budget_s, const Call& call) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  std::vector<double> samples;
  const auto start = Clock::now();
  do {
    const auto began = Clock::now();
    for (int i = 0; i < calls; ++i)
      call();
    samples.push_back(seconds_since(began) / calls);
  } while (seconds_since(start) < budget_s);
  return quantiles(std::move(samples)).p10;
}

/// "2,4,8" -> {2, 4, 8}; anything that is not a number becomes 0.
inline std::vector<int> int_list(const std::string& text) {
  std::vector<int> out;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    out.push_back(std::atoi(text.substr(begin, end - begin).c_str()));
    begin = end + 1;
  }
  return out;
}

}  // namespace hora::bench
