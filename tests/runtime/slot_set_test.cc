// Sets of slots survive the way in the shorter of two forms.
#include "runtime/slot_set.h"

#include <random>

#include <catch2/catch.hpp>

namespace hora {
namespace {

struct Encoded {
  SlotForm form;
  std::vector<std::byte> bytes;
};

Encoded encoded(const std::vector<Slot>& slots) {
  Encoded result{};
  ByteWriter out(result.bytes);
  result.form = encode_slots(slots, out);
  return result;
}

std::size_t round_trip(const std::vector<Slot>& slots) {
  const Encoded sent = encoded(slots);
  ByteReader in(sent.bytes);
  std::vector<Slot> got;
  REQUIRE(decode_slots(sent.form, in, got));
  REQUIRE(in.rest().empty());
  REQUIRE(got == slots);
  return sent.bytes.size();
}

std::vector<Slot> range(Slot first, Slot count, Slot step = 1) {
  std::vector<Slot> slots;
  for (Slot i = 0; i < count; ++i)
    slots.push_back(first + i * step);
  return slots;
}

}  // namespace

TEST_CASE("slot set: neighbours cost a run, a random half costs a bit each") {
  CHECK(round_trip({0}) == 1);
  CHECK(round_trip({31}) == 1);
  CHECK(round_trip({kMaxSlots - 1}) == 4);
  CHECK(round_trip(range(0, 161)) == 3);
  CHECK(round_trip(range(500, 1000)) == 4);
  CHECK(round_trip(range(0, 500, 2)) <= 128);
  CHECK(encoded(range(0, 161)).form == SlotForm::list);
  CHECK(encoded(range(0, 500, 2)).form == SlotForm::bitmap);
}

TEST_CASE("slot set: random sets of any density survive") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    const std::uint64_t gap = 1 + random() % (std::uint64_t{1} << (random() % 12));
    std::vector<Slot> slots;
    for (Slot slot = static_cast<Slot>(random() % 5000); slots.size() < 1 + random() % 300;) {
      slots.push_back(slot);
      slot += static_cast<Slot>(1 + random() % gap);
      if (slot >= kMaxSlots) break;
    }
    const std::size_t bytes = round_trip(slots);
    REQUIRE(bytes <= 6 + (slots.back() - slots.front()) / 8 + 1);  // never worse than the bitmap
  }
}

TEST_CASE("slot set: slots beyond the bound and cut bytes are refused") {
  const auto refused = [](SlotForm form, std::vector<std::uint64_t> numbers, std::size_t extra) {
    std::vector<std::byte> bytes;
    ByteWriter out(bytes);
    for (const std::uint64_t number : numbers)
      out.varint(number);
    for (std::size_t i = 0; i < extra; ++i)
      out.byte(0xff);
    ByteReader in(bytes);
    std::vector<Slot> slots;
    return !decode_slots(form, in, slots);
  };
  CHECK(refused(SlotForm::list, {std::uint64_t{kMaxSlots} << 2}, 0));
  CHECK(refused(SlotForm::list, {2, kMaxSlots}, 0));  // a run too long
  CHECK(refused(SlotForm::list, {(std::uint64_t{kMaxSlots} - 1) << 2 | 2, 0}, 0));
  CHECK(refused(SlotForm::list, {1}, 0));  // more, but nothing
  CHECK(refused(SlotForm::list, {~std::uint64_t{0}}, 0));
  CHECK(refused(SlotForm::bitmap, {0, 4}, 3));
  CHECK(refused(SlotForm::bitmap, {kMaxSlots - 1, 1}, 1));
  CHECK(refused(SlotForm::bitmap, {0, ~std::uint64_t{0}}, 8));
  CHECK_FALSE(refused(SlotForm::bitmap, {0, 4}, 4));
}

TEST_CASE("varint: every length survives, eleven bytes or overflow do not") {
  for (int bits = 0; bits < 64; ++bits) {
    for (const std::uint64_t value : {std::uint64_t{1} << bits, (std::uint64_t{1} << bits) - 1}) {
      std::vector<std::byte> bytes;
      ByteWriter(bytes).varint(value);
      ByteReader in(bytes);
      std::uint64_t got = 0;
      REQUIRE(in.varint(got));
      REQUIRE(got == value);
    }
  }
  std::uint64_t got = 0;
  CHECK_FALSE(ByteReader(std::vector<std::byte>(11, std::byte{0x80})).varint(got));
  std::vector<std::byte> overflow(10, std::byte{0xff});
  CHECK_FALSE(ByteReader(overflow).varint(got));
}

}  // namespace hora
