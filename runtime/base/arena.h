// Arena: a worker's shared memory, one memfd for its whole life.
//
//   page 0      ArenaHeader: magic, size, worker
//   page 1      doorbell page: DoorbellWords; peers map this page writable and only add to it
//   page 2..    areas, reserved in order and never freed singly: slots, lines, control rings
//
// The owner writes, peers read. There is no lock and no compare-and-swap in it: every word has a
// single writer and moves one way, so a kill between any two instructions leaves at worst something
// unpublished. It has no name in any file system: it disappears with the last process that maps it.
// The memory of an area is touched when it is reserved, so that a container with too little memory
// fails then, with a number, instead of by SIGBUS in the middle of training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "runtime/base/fd.h"
#include "runtime/base/fork.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/base/wait_point.h"

namespace hora {

struct ArenaHeader {
  std::uint64_t magic = 0;
  std::uint64_t bytes = 0;
  WorkerId worker{};
};

inline constexpr std::uint64_t kArenaMagic = 0x616e657261726f48;  // "Horarena"
inline constexpr std::size_t kDoorbellOffset = 4096;
inline constexpr std::size_t kFirstArea = 8192;

/// The own arena. Owner: the Runtime. `reserve` by one thread; the memory itself by
/// the progress token.
class Arena {
 public:
  /// Makes an arena of `bytes` (rounded up to pages). Address space only: memory is used
  /// as reserved. `shared` false (a job of one, sanitizers): anonymous private memory
  /// without descriptor.
  static Result<std::unique_ptr<Arena>> make(std::size_t bytes, const WorkerId& worker,
                                             bool shared);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Offset of `bytes` fresh zeroed bytes, 4096-aligned, prefaulted. Error `resource` names what is
  /// missing and HORA_ARENA_BYTES.
  Result<std::size_t> reserve(std::size_t bytes, const char* what);
  /// Gives back everything reserved at or after `offset` (a session's areas, when it is replaced).
  void release_from(std::size_t offset);

  [[nodiscard]] std::byte* at(std::size_t offset) { return base_ + offset; }
  [[nodiscard]] std::size_t offset_of(const std::byte* p) const {
    return static_cast<std::size_t>(p - base_);
  }
  [[nodiscard]] bool contains(const std::byte* p) const { return p >= base_ && p < base_ + bytes_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] DoorbellWords& doorbell();

 private:
  Arena(Fd fd, std::byte* base, std::size_t bytes)
      : fd_(std::move(fd)), guard_(fd_.get()), base_(base), bytes_(bytes) {}

  Fd fd_;
  ForkGuard guard_;
  std::byte* base_;
  std::size_t bytes_;
  std::size_t used_ = kFirstArea;
};

/// A peer's arena in our address space: read-only, but for its doorbell page.
class PeerArena {
 public:
  /// Maps a descriptor received from a peer. Checks header, size and seals: a peer that lies cannot
  /// make us fault.
  static Result<std::unique_ptr<PeerArena>> map(Fd fd, const WorkerId& expected);
  ~PeerArena();
  PeerArena(const PeerArena&) = delete;
  PeerArena& operator=(const PeerArena&) = delete;

  [[nodiscard]] const std::byte* at(std::size_t offset) const { return base_ + offset; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] DoorbellWords& doorbell() { return *doorbell_; }

 private:
  PeerArena(const std::byte* base, std::size_t bytes, DoorbellWords* doorbell)
      : base_(base), bytes_(bytes), doorbell_(doorbell) {}

  const std::byte* base_;
  std::size_t bytes_;
  DoorbellWords* doorbell_;
};

/// The default arena size: the smaller of 256 MB and an eighth of the memory limit (cgroup or
/// machine) divided by the ranks on this host.
std::size_t default_arena_bytes(int local_size);

}  // namespace hora
