// Time, as an argument.
//
// Pure code (coordinator, membership, stall inspector) never asks what time it is: it is told. Code
// at the edge reads `steady_now()` once per step and hands it on. Every wait takes a `Deadline`.
#pragma once

#include <chrono>

namespace hora {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""us;
using std::chrono_literals::operator""s;

/// Reads the monotonic clock (about 25 ns).
inline TimePoint steady_now() {
  return std::chrono::steady_clock::now();
}

/// A moment after which a wait gives up.
struct Deadline {
  TimePoint at;

  static Deadline after(Duration duration) { return {steady_now() + duration}; }
  [[nodiscard]] bool passed(TimePoint now) const { return now >= at; }
  /// Time left, never negative.
  [[nodiscard]] Duration left(TimePoint now) const {
    return now >= at ? Duration::zero() : at - now;
  }
};

/// Whole milliseconds, rounded up, for poll() and messages.
inline long long to_ms(Duration duration) {
  return std::chrono::ceil<std::chrono::milliseconds>(duration).count();
}

/// Seconds as a number, for messages.
inline double to_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace hora
