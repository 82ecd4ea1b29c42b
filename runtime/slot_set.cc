#include "runtime/slot_set.h"

#include <algorithm>
#include <bit>

#include "runtime/base/check.h"

namespace hora {
namespace {

std::size_t varint_size(std::uint64_t value) {
  return value == 0 ? 1 : static_cast<std::size_t>((std::bit_width(value) + 6) / 7);
}

void encode_list(std::span<const Slot> slots, ByteWriter& out) {
  Slot expected = 0;
  for (std::size_t i = 0; i < slots.size();) {
    std::size_t length = 1;
    while (i + length < slots.size() && slots[i + length] == slots[i] + length)
      ++length;
    const std::uint64_t gap = slots[i] - expected;
    const std::uint64_t run = length >= 2 ? 1 : 0;
    const std::uint64_t more = i + length < slots.size() ? 1 : 0;
    out.varint(gap << 2 | run << 1 | more);
    if (run != 0) out.varint(length - 2);
    expected = slots[i] + static_cast<Slot>(length);
    i += length;
  }
}

void encode_bitmap(std::span<const Slot> slots, std::size_t bytes, ByteWriter& out) {
  out.varint(slots.front());
  out.varint(bytes);
  const std::size_t start = out.size();
  out.truncate(start + bytes);  // grows, zeroed
  for (const Slot slot : slots) {
    const Slot bit = slot - slots.front();
    out.at(start + bit / 8) |= static_cast<std::byte>(1u << (bit % 8));
  }
}

bool decode_list(ByteReader& in, std::vector<Slot>& slots) {
  std::uint64_t next = 0;
  for (bool more = true; more;) {
    std::uint64_t token = 0;
    std::uint64_t extra = 0;
    if (!in.varint(token)) return false;
    const bool run = (token & 2) != 0;
    if (run && !in.varint(extra)) return false;
    more = (token & 1) != 0;
    const std::uint64_t gap = token >> 2;
    if (gap >= kMaxSlots || extra >= kMaxSlots) return false;
    const std::uint64_t first = next + gap;
    const std::uint64_t length = run ? extra + 2 : 1;
    if (first + length > kMaxSlots) return false;
    for (std::uint64_t i = 0; i < length; ++i)
      slots.push_back(static_cast<Slot>(first + i));
    next = first + length;
  }
  return true;
}

bool decode_bitmap(ByteReader& in, std::vector<Slot>& slots) {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::span<const std::byte> bits;
  if (!in.varint(first) || !in.varint(count)) return false;
  if (first >= kMaxSlots || count > kMaxSlots / 8 || !in.bytes(count, bits)) return false;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    for (auto left = static_cast<unsigned>(bits[i]); left != 0; left &= left - 1) {
      const std::uint64_t slot = first + i * 8 + static_cast<unsigned>(std::countr_zero(left));
      if (slot >= kMaxSlots) return false;
      slots.push_back(static_cast<Slot>(slot));
    }
  }
  return true;
}

}  // namespace

void ByteWriter::varint(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7)
    byte(static_cast<std::uint8_t>(value | 0x80));
  byte(static_cast<std::uint8_t>(value));
}

bool ByteReader::byte(std::uint8_t& value) {
  if (in_.empty()) return false;
  value = static_cast<std::uint8_t>(in_.front());
  in_ = in_.subspan(1);
  return true;
}

bool ByteReader::varint(std::uint64_t& value) {
  value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    std::uint8_t next = 0;
    if (!byte(next)) return false;
    const std::uint64_t part = next & 0x7fu;
    if (shift == 63 && part > 1) return false;
    value |= part << shift;
    if ((next & 0x80u) == 0) return true;
  }
  return false;
}

bool ByteReader::bytes(std::size_t count, std::span<const std::byte>& data) {
  if (count > in_.size()) return false;
  data = in_.first(count);
  in_ = in_.subspan(count);
  return true;
}

SlotForm encode_slots(std::span<const Slot> slots, ByteWriter& out) {
  HORA_CHECK(!slots.empty() && slots.back() < kMaxSlots, "slot sets are not empty and bounded");
  const std::size_t start = out.size();
  encode_list(slots, out);
  const std::size_t bitmap_bytes = (slots.back() - slots.front()) / 8 + 1;
  const std::size_t as_bitmap =
      varint_size(slots.front()) + varint_size(bitmap_bytes) + bitmap_bytes;
  if (out.size() - start <= as_bitmap) return SlotForm::list;
  out.truncate(start);
  encode_bitmap(slots, bitmap_bytes, out);
  return SlotForm::bitmap;
}

bool decode_slots(SlotForm form, ByteReader& in, std::vector<Slot>& slots) {
  return form == SlotForm::list ? decode_list(in, slots) : decode_bitmap(in, slots);
}

}  // namespace hora
