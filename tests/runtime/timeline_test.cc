// The trace is JSON at any moment, whatever the names and whoever kills us.
#include "runtime/timeline.h"

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include <catch2/catch.hpp>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hora {
namespace {

/// Is the text one JSON document? Recursive descent over the grammar of RFC 8259.
class JsonChecker {
 public:
  explicit JsonChecker(std::string_view text) : text_(text) {}

  bool valid() {
    skip_space();
    return value() && (skip_space(), at_ == text_.size());
  }
  std::size_t objects = 0;

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool eat(char c) { return peek() == c && ++at_ > 0; }
  void skip_space() {
    while (peek() != '\0' && std::string_view(" \n\r\t").find(peek()) != std::string_view::npos)
      ++at_;
  }

  bool value() {
    if (peek() == '{') return members('{', '}', true);
    if (peek() == '[') return members('[', ']', false);
    if (peek() == '"') return string();
    return number();
  }

  bool members(char open, char close, bool keyed) {
    eat(open);
    if (keyed) ++objects;
    skip_space();
    if (eat(close)) return true;
    do {
      skip_space();
      if (keyed && !(string() && (skip_space(), eat(':')))) return false;
      skip_space();
      if (!value()) return false;
      skip_space();
    } while (eat(','));
    return eat(close);
  }

  bool string() {
    if (!eat('"')) return false;
    while (at_ < text_.size() && peek() != '"') {
      if (static_cast<unsigned char>(peek()) < 0x20) return false;
      if (eat('\\') && std::string_view("\"\\/bfnrt").find(peek()) == std::string_view::npos)
        return false;
      ++at_;
    }
    return eat('"');
  }

  bool number() {
    const std::size_t start = at_;
    eat('-');
    while (std::isdigit(static_cast<unsigned char>(peek())) != 0)
      ++at_;
    return at_ > start;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

struct TemporaryFile {
  TemporaryFile() {
    char name[] = "/tmp/hora_timeline_XXXXXX";
    const int fd = ::mkstemp(name);
    REQUIRE(fd >= 0);
    ::close(fd);
    path = name;
  }
  ~TemporaryFile() { ::unlink(path.c_str()); }
  std::string text() const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  std::string path;
};

Timeline open_timeline(const std::string& path, std::size_t limit = 1 << 16) {
  auto timeline = Timeline::open(path, {limit});
  REQUIRE(timeline);
  return std::move(*timeline);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

}  // namespace

TEST_CASE("timeline: the JSON checker can say no") {
  CHECK(JsonChecker(R"([{"a":"b\\\"","c":-1}, [] ] )").valid());
  for (const char* bad : {"", "[", "[}", "[1,]", R"({"a"})", R"(["\x"])", "[1]]", "[\"\n\"]"}) {
    CHECK_FALSE(JsonChecker(bad).valid());
  }
}

TEST_CASE("timeline: a tensor's life has Horovod's names, and the file is whole after a flush") {
  TemporaryFile file;
  Timeline timeline = open_timeline(file.path);
  CHECK(JsonChecker(file.text()).valid());
  timeline.begin("conv.weight", negotiate_phase(Request{}));
  timeline.rank_ready("conv.weight", Rank{3});
  timeline.end("conv.weight");
  timeline.begin("conv.weight", to_string(Kind::allreduce));
  timeline.begin("conv.weight", activity::kMemcpyIn);
  timeline.end("conv.weight");
  timeline.end("conv.weight", DType::float32, {17, 17});
  timeline.instant("CYCLE_START");
  REQUIRE(timeline.flush(Deadline::after(60s)));
  const std::string text = file.text();
  JsonChecker json(text);
  CHECK(json.valid());
  // Start, name and sort index of the tensor, its 7 events, the mark; six have an object within.
  CHECK(json.objects == 11 + 4);
  for (const char* part :
       {R"("name":"NEGOTIATE_ALLREDUCE")", R"("name":"ALLREDUCE")",
        R"("name":"MEMCPY_IN_FUSION_BUFFER")", R"("args":{"dtype":"float32","shape":"[17, 17]"})",
        R"("ph":"X")", R"("name":"3")", R"("s":"g")", R"("start_time_since_epoch_in_micros":)",
        R"("name":"conv.weight")"}) {
    INFO(part);
    CHECK(count(text, part) == 1);
  }
  timeline.begin("conv.weight", "AGAIN");
  REQUIRE(timeline.flush(Deadline::after(60s)));
  CHECK(JsonChecker(file.text()).valid());
  CHECK(count(file.text(), R"("name":"process_name")") == 2);  // introduced once
}

TEST_CASE("timeline: any bytes may be in a name") {
  TemporaryFile file;
  {
    Timeline timeline = open_timeline(file.path);
    for (int byte = 0; byte < 256; ++byte) {
      timeline.begin(std::string("a\"\\") + static_cast<char>(byte), "X");
    }
    timeline.begin(
        "gr\xc3\xbc\xc3\x9f"
        "e",
        "X");
  }
  const std::string text = file.text();
  CHECK(JsonChecker(text).valid());
  CHECK(count(text,
              "gr\xc3\xbc\xc3\x9f"
              "e") == 1);
  CHECK(count(text, R"(a\"\\\\xff)") == 1);
}

TEST_CASE("timeline: killed at any moment, it leaves a file that parses") {
  for (int round = 0; round < 10; ++round) {
    TemporaryFile file;
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      auto timeline = Timeline::open(file.path, {1 << 16});
      if (!timeline) ::_exit(1);
      for (std::uint64_t i = 0;; ++i) {
        const std::string name = "tensor." + std::to_string(i % 5000);
        timeline->begin(name, "ALLREDUCE");
        timeline->end(name);
        if (i % 500 != 499) continue;
        const bool flushed = timeline->flush(Deadline::after(60s));
        if (!flushed || ::write(ready[1], "x", 1) != 1) ::_exit(1);
      }
    }
    REQUIRE(child > 0);
    char byte = 0;
    for (int flushes = 0; flushes < 1 + round * 3; ++flushes)
      REQUIRE(::read(ready[0], &byte, 1) == 1);
    REQUIRE(::kill(child, SIGKILL) == 0);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    ::close(ready[0]);
    ::close(ready[1]);
    const std::string text = file.text();
    JsonChecker json(text);
    CHECK(json.valid());
    CHECK(json.objects > 1000);  // what was flushed is there
  }
}

TEST_CASE("timeline: a file that outgrows its room keeps every event, and ends after the last") {
  TemporaryFile file;
  constexpr int kSpans = 5000;
  {
    Timeline timeline = open_timeline(file.path);
    for (int i = 0; i < kSpans; ++i) {
      timeline.begin("tensor." + std::string(static_cast<std::size_t>(i % 300), 'x'), "ALLREDUCE");
      if (i % 1000 == 0) {
        REQUIRE(timeline.flush(Deadline::after(60s)));
        CHECK(JsonChecker(file.text()).valid());
      }
    }
    CHECK(timeline.dropped() == 0);
  }
  const std::string text = file.text();
  CHECK(JsonChecker(text).valid());
  CHECK(count(text, R"("name":"ALLREDUCE")") == kSpans);
  CHECK(text.ends_with("}]\n"));
  CHECK(::access((file.path + ".part").c_str(), F_OK) != 0);
}

TEST_CASE("timeline: a full queue drops events, counts them, and says so") {
  TemporaryFile file;
  {
    Timeline timeline = open_timeline(file.path, 0);
    for (int i = 0; i < 5; ++i)
      timeline.begin("x", "ALLREDUCE");
    CHECK(timeline.dropped() == 5);
  }
  CHECK(JsonChecker(file.text()).valid());
  CHECK(count(file.text(), R"("args":{"count":5})") == 1);
}

TEST_CASE("timeline: off, it does nothing; and it is off without a file") {
  Timeline off;
  off.begin("x", "ALLREDUCE");
  off.end("x");
  CHECK_FALSE(off.on());
  CHECK(off.flush(Deadline::after(0s)));
  const auto nowhere = Timeline::open("/nonexistent/trace.json", {10});
  REQUIRE_FALSE(nowhere);
  CHECK(nowhere.error().message.find("/nonexistent/trace.json") != std::string::npos);
  CHECK_FALSE(Timeline::open("/dev/null", {10}));  // would be replaced
  CHECK(timeline_path("/tmp/trace.%r.json", Rank{12}) == "/tmp/trace.12.json");
  CHECK(timeline_path("/tmp/trace.json", Rank{0}) == "/tmp/trace.json");
  CHECK(timeline_path("/tmp/trace.json", Rank{1}).empty());
}

TEST_CASE("timeline: it may begin in the middle of a tensor's life") {
  TemporaryFile file;
  Timeline timeline = open_timeline(file.path);
  timeline.end("conv.weight");  // of NEGOTIATE_ALLREDUCE, which nobody has seen
  timeline.begin("conv.weight", to_string(Kind::allreduce));
  timeline.cycle();
  timeline.end("conv.weight");
  timeline.end("conv.weight");
  REQUIRE(timeline.flush(Deadline::after(60s)));
  CHECK(JsonChecker(file.text()).valid());
  CHECK(count(file.text(), R"("ph":"B")") == 1);
  CHECK(count(file.text(), R"("ph":"E")") == 1);
  CHECK(count(file.text(), "CYCLE_START") == 0);  // not asked for

  auto marked = Timeline::open(file.path, {.mark_cycles = true});
  REQUIRE(marked);
  marked->cycle();
  REQUIRE(marked->flush(Deadline::after(60s)));
  CHECK(count(file.text(), "CYCLE_START") == 1);
}

}  // namespace hora
