#include "runtime/base/arena.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/check.h"

namespace hora {

namespace {

constexpr std::size_t kPage = 4096;

std::size_t round_up(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

/// Bytes this process group may use: the smaller of the machine's memory and the cgroup's limit.
std::size_t memory_limit_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  std::size_t limit = pages > 0 ? static_cast<std::size_t>(pages) * kPage : std::size_t{1} << 30;
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    std::size_t value = 0;
    if (file >> value) limit = std::min(limit, value);  // "max" does not parse: no limit there.
  }
  return limit;
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::make(std::size_t bytes, const WorkerId& worker, bool shared) {
  bytes = std::max(round_up(bytes), kFirstArea);
  Fd fd;
  void* base = MAP_FAILED;
  if (shared) {
    fd.reset(::memfd_create("hora-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd.valid()) return fail_errno("memfd_create for the arena");
    if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
      return fail(ErrorKind::resource, "cannot size the shared arena to " + std::to_string(bytes) +
                                           " bytes; set HORA_ARENA_BYTES to less");
    }
    if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      return fail_errno("sealing the arena");
    }
    base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  } else {
    base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (base == MAP_FAILED)
    return fail(ErrorKind::resource, "cannot map an arena of " + std::to_string(bytes) +
                                         " bytes; set HORA_ARENA_BYTES to less");
  // A forked child must not keep the arena alive or write into it.
  ::madvise(base, bytes, MADV_DONTFORK);

  auto* memory = static_cast<std::byte*>(base);
  new (memory + kDoorbellOffset) DoorbellWords{};
  auto* header = new (memory) ArenaHeader{};
  header->bytes = bytes;
  header->worker = worker;
  header->magic = kArenaMagic;
  return std::unique_ptr<Arena>(new Arena(std::move(fd), memory, bytes));
}

Arena::~Arena() {
  ::munmap(base_, bytes_);
}

DoorbellWords& Arena::doorbell() {
  return *std::launder(reinterpret_cast<DoorbellWords*>(base_ + kDoorbellOffset));
}

Result<std::size_t> Arena::reserve(std::size_t bytes, const char* what) {
  bytes = round_up(std::max<std::size_t>(bytes, 1));
  if (bytes > bytes_ - used_) {
    return fail(ErrorKind::resource,
                std::string("the arena of ") + std::to_string(bytes_) + " bytes has no room for " +
                    what + " (" + std::to_string(bytes) + " bytes more than the " +
                    std::to_string(used_) + " in use); set HORA_ARENA_BYTES to at least " +
                    std::to_string(used_ + bytes));
  }
  std::byte* start = base_ + used_;
  // Memory that a former session used must read as zero again.
  if (fd_.valid()) {
    ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(used_),
                static_cast<off_t>(bytes));
    // fallocate reports a full tmpfs or memory cgroup as an error, where a first
    // touch would be SIGBUS.
    if (::fallocate(fd_.get(), 0, static_cast<off_t>(used_), static_cast<off_t>(bytes)) != 0) {
      return fail(ErrorKind::resource, std::string("there is no memory for ") + what + ": " +
                                           std::to_string(bytes) +
                                           " bytes of shared memory; give the " +
                                           "container more or set HORA_ARENA_BYTES to less");
    }
  } else {
    ::madvise(start, bytes, MADV_DONTNEED);
  }
  ::madvise(start, bytes, MADV_POPULATE_WRITE);
  const std::size_t offset = used_;
  used_ += bytes;
  return offset;
}

void Arena::release_from(std::size_t offset) {
  HORA_CHECK(offset >= kFirstArea && offset <= used_, "only reserved areas are released");
  used_ = offset;
}

Result<std::unique_ptr<PeerArena>> PeerArena::map(Fd fd, const WorkerId& expected) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return fail_errno("fstat of a peer's arena");
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return fail(ErrorKind::protocol, "a peer's arena is not a memfd sealed against shrinking");
  }
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes < kFirstArea) return fail(ErrorKind::protocol, "a peer's arena is too small");

  void* base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return fail_errno("mapping a peer's arena");
  void* bell =
      ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), kDoorbellOffset);
  if (bell == MAP_FAILED) {
    ::munmap(base, bytes);
    return fail_errno("mapping a peer's doorbell");
  }
  ::madvise(base, bytes, MADV_DONTFORK);
  ::madvise(bell, kPage, MADV_DONTFORK);
  std::unique_ptr<PeerArena> arena(
      new PeerArena(static_cast<const std::byte*>(base), bytes, static_cast<DoorbellWords*>(bell)));
  ArenaHeader header;
  std::memcpy(&header, base, sizeof header);
  if (header.magic != kArenaMagic || header.bytes != bytes || header.worker != expected) {
    return fail(ErrorKind::protocol, "a peer's arena belongs to another worker");
  }
  return arena;
}

PeerArena::~PeerArena() {
  ::munmap(const_cast<std::byte*>(base_), bytes_);
  ::munmap(doorbell_, kPage);
}

std::size_t default_arena_bytes(int local_size) {
  constexpr std::size_t kMost = std::size_t{256} << 20;
  return std::min(kMost,
                  memory_limit_bytes() / 8 / static_cast<std::size_t>(std::max(1, local_size)));
}

}  // namespace hora
