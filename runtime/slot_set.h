// Slot sets: the few bits that stand for known tensors.
//
// From its second use on a tensor is a slot of the ResponseCache, and what travels is a set
// of slots: from a rank "I have these", from the root "run these". Two forms, and the
// shorter one is sent:
//
//   list    a token per run of neighbours: varint(gap << 2 | run << 1 | more), and after it
//           varint(length - 2) if `run`. The gap is counted from the end of the run before.
//           All 161 gradients of a ResNet-50 in one go are 2 or 3 bytes; a lone slot is 1 or 2
//   bitmap  varint(first slot), varint(bytes), bytes; bit i stands for slot first + i.
//           A random half of 1,000 slots is 125 bytes
//
// Decoding is for bytes of strangers: every read is checked, sets are ascending by construction,
// and no slot is at or above the caller's limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hora {

/// Index of a known tensor.
using Slot = std::uint32_t;
inline constexpr Slot kNoSlot = 0xffffffff;
/// Slots are below this, whatever the capacity: what a decoder accepts.
inline constexpr Slot kMaxSlots = 1u << 20;

/// Appends bytes and varints (LEB128: 7 bits a byte, low bits first).
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}

  void byte(std::uint8_t value) { out_.push_back(static_cast<std::byte>(value)); }
  void varint(std::uint64_t value);
  void bytes(std::span<const std::byte> data) { out_.insert(out_.end(), data.begin(), data.end()); }
  [[nodiscard]] std::size_t size() const { return out_.size(); }
  [[nodiscard]] std::byte& at(std::size_t index) { return out_[index]; }
  void truncate(std::size_t size) { out_.resize(size); }

 private:
  std::vector<std::byte>& out_;
};

/// Reads what ByteWriter wrote. Every read says whether the bytes were there and well-formed.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> in) : in_(in) {}

  [[nodiscard]] bool byte(std::uint8_t& value);
  [[nodiscard]] bool varint(std::uint64_t& value);
  [[nodiscard]] bool bytes(std::size_t count, std::span<const std::byte>& data);
  [[nodiscard]] std::span<const std::byte> rest() const { return in_; }

 private:
  std::span<const std::byte> in_;
};

enum class SlotForm : std::uint8_t { list = 0, bitmap = 1 };

/// Appends `slots` (ascending, not empty, < kMaxSlots) in the shorter form and says which it was.
SlotForm encode_slots(std::span<const Slot> slots, ByteWriter& out);
/// Appends the slots to `slots`. False: malformed, or a slot >= kMaxSlots.
[[nodiscard]] bool decode_slots(SlotForm form, ByteReader& in, std::vector<Slot>& slots);

}  // namespace hora
