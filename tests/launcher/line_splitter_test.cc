// LineSplitter: what comes out depends on the bytes, never on how they were cut into reads.
//
// The property test cuts random streams, rich in terminators, at random places, and compares
// with the stream in one go and with a rule that needs no splitter: text and terminators
// together are the input.
#include "launcher/line_splitter.h"

#include <random>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

namespace hora {
namespace {

using Pieces = std::vector<std::pair<std::string, LineEnd>>;

Pieces split(const std::vector<std::string>& reads, std::size_t limit_bytes = 1000) {
  LineSplitter splitter(limit_bytes);
  Pieces pieces;
  const auto emit = [&](const Piece& piece) { pieces.emplace_back(piece.text, piece.end); };
  for (const std::string& bytes : reads)
    splitter.feed(bytes, emit);
  splitter.finish(emit);
  return pieces;
}

std::string join(const Pieces& pieces) {
  std::string text;
  for (const auto& [piece, end] : pieces) {
    text += piece;
    if (end == LineEnd::newline || end == LineEnd::newline_after_return) text += '\n';
    if (end == LineEnd::carriage_return) text += '\r';
  }
  return text;
}

TEST_CASE("lines end at newlines, the last one at the end of the stream") {
  CHECK(split({"a\n\nb"}) ==
        Pieces{{"a", LineEnd::newline}, {"", LineEnd::newline}, {"b", LineEnd::end_of_stream}});
  CHECK(split({"a\n"}) == Pieces{{"a", LineEnd::newline}});
  CHECK(split({}).empty());
}

TEST_CASE("a progress bar's line is emitted at its return, before more bytes come") {
  LineSplitter splitter(1000);
  Pieces pieces;
  const auto emit = [&](const Piece& piece) { pieces.emplace_back(piece.text, piece.end); };
  splitter.feed(" 10%\r", emit);
  CHECK(pieces == Pieces{{" 10%", LineEnd::carriage_return}});
  splitter.feed("\n", emit);
  CHECK(pieces.back() == std::pair<std::string, LineEnd>{"", LineEnd::newline_after_return});
}

TEST_CASE("any byte passes through: NUL, 0xff, half a character") {
  const std::string text("\0\xff\xc3", 3);
  CHECK(split({text + "\n"}) == Pieces{{text, LineEnd::newline}});
}

TEST_CASE("a line of exactly the limit is one piece, one byte more is cut") {
  CHECK(split({"abcd\n"}, 4) == Pieces{{"abcd", LineEnd::newline}});
  CHECK(split({"abcde\n"}, 4) == Pieces{{"abcd", LineEnd::cut}, {"e", LineEnd::newline}});
  CHECK(split({"abcdefghij"}, 4) ==
        Pieces{{"abcd", LineEnd::cut}, {"efgh", LineEnd::cut}, {"ij", LineEnd::end_of_stream}});
}

TEST_CASE("property: the cutting into reads does not matter, and no byte is lost") {
  const auto seed = GENERATE(range(0u, 300u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const std::string alphabet("ab\n\r\0\xff", 6);
  const std::size_t limit_bytes = 1 + random() % 9;
  std::string stream;
  for (std::size_t length = random() % 200; stream.size() < length;) {
    stream += alphabet[random() % alphabet.size()];
  }
  std::vector<std::string> reads;
  for (std::size_t at = 0; at < stream.size();) {
    const std::size_t bytes = random() % 8;
    reads.push_back(stream.substr(at, bytes));
    at += bytes;
  }
  const Pieces pieces = split(reads, limit_bytes);
  CHECK(pieces == split({stream}, limit_bytes));
  CHECK(join(pieces) == stream);
  for (const auto& [text, end] : pieces) {
    CHECK(text.size() <= limit_bytes);
    CHECK((end != LineEnd::cut || text.size() == limit_bytes));
  }
}

}  // namespace
}  // namespace hora
