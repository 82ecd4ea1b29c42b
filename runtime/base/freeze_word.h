// FreezeWord: where finishing a segment and freezing meet.
//
// A worker that is asked how far it has come says a number, and from then on finishes nothing more:
// the next World is made from what was said. The engine finishes segments, the io thread may be the
// one who is asked, and neither waits for the other. So the count and the word "frozen" are one
// word, and both sides change it by compare-and-swap:
//
//   epoch 16 | frozen 1 | count 47
//
//   engine   advance: count + 1, unless frozen. Only then is the caller's tensor written
//   anybody  freeze:  frozen, unless the epoch is another. What the count is then, it stays
//
// Whichever swap comes first, the count that is reported and the tensors that are written agree.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/base/check.h"
#include "runtime/base/ids.h"

namespace hora {

/// One lane's count in one epoch. Thread-safe.
class FreezeWord {
 public:
  FreezeWord(Epoch epoch, std::uint64_t count) : word_(pack(epoch, count)) {
    HORA_CHECK(count < kFrozen, "a count has 47 bits");
  }

  /// The next position is done here. False: frozen, and it is not.
  [[nodiscard]] bool advance() {
    std::uint64_t seen = word_.load(std::memory_order_relaxed);
    do {
      if ((seen & kFrozen) != 0) return false;
    } while (!word_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                          std::memory_order_relaxed));
    return true;
  }

  /// From now on the count stands still. Nothing happens in another epoch than the one meant.
  void freeze(Epoch epoch) {
    std::uint64_t seen = word_.load(std::memory_order_relaxed);
    do {
      if (seen >> kEpochShift != (epoch.value & kEpochMask)) return;
    } while (!word_.compare_exchange_weak(seen, seen | kFrozen, std::memory_order_acq_rel,
                                          std::memory_order_relaxed));
  }

  [[nodiscard]] bool frozen() const {
    return (word_.load(std::memory_order_acquire) & kFrozen) != 0;
  }
  /// Positions below are done here.
  [[nodiscard]] std::uint64_t count() const {
    return word_.load(std::memory_order_acquire) & (kFrozen - 1);
  }

 private:
  static constexpr unsigned kEpochShift = 48;
  static constexpr std::uint64_t kEpochMask = 0xffff;
  static constexpr std::uint64_t kFrozen = std::uint64_t{1} << 47;

  static std::uint64_t pack(Epoch epoch, std::uint64_t count) {
    return (epoch.value & kEpochMask) << kEpochShift | count;
  }

  std::atomic<std::uint64_t> word_;
};

}  // namespace hora
