// Sink: whole lines, in order, through a reader that is slow, gone, or the same for two streams.
//
// The readers are the other ends of pipes and sockets in this process.
#include "launcher/sink.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <string>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace hora {
namespace {

struct Ends {
  Fd read, write;
};

Ends pipe_ends() {
  int fds[2];
  REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

Ends socket_ends() {
  int fds[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

std::string read_some(const Fd& fd) {
  std::array<char, 65536> buffer;
  const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
  return {buffer.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
}

// Everything of the sink, as the reader sees it: also what the pipe holds when the sink is empty.
std::string drain(Sink& sink, const Fd& reader) {
  REQUIRE(::fcntl(reader.get(), F_SETFL, O_NONBLOCK) == 0);
  std::string text;
  while (!sink.empty()) {
    REQUIRE(sink.flush());
    text += read_some(reader);
  }
  while (true) {
    const std::string more = read_some(reader);
    if (more.empty()) return text;
    text += more;
  }
}

TEST_CASE("lines carry their prefix, and a last line without newline gets one") {
  const Ends ends = pipe_ends();
  Sink sink(ends.write.get(), 1000);
  sink.add(0, "[0]", {"a", LineEnd::newline});
  sink.add(1, "[1]", {"b", LineEnd::end_of_stream});
  sink.add_line("horarun: c");
  CHECK(drain(sink, ends.read) == "[0]a\n[1]b\nhorarun: c\n");
}

TEST_CASE("a progress bar goes on in place, and another stream's line does not overwrite it") {
  const Ends ends = pipe_ends();
  Sink sink(ends.write.get(), 1000);
  sink.add(0, "[0]", {"10%", LineEnd::carriage_return});
  sink.add(0, "[0]", {"20%", LineEnd::carriage_return});
  sink.add(1, "[1]", {"b", LineEnd::newline});
  sink.add(0, "[0]", {"", LineEnd::newline_after_return});
  sink.add(0, "[0]", {"30%", LineEnd::carriage_return});
  sink.add(0, "[0]", {"", LineEnd::newline_after_return});
  CHECK(drain(sink, ends.read) == "[0]10%\r[0]20%\r\n[1]b\n[0]30%\r\n");
}

TEST_CASE("a reader that does not read makes the sink full, not blocked, and nothing is lost") {
  const auto make = GENERATE(&pipe_ends, &socket_ends);
  const Ends ends = make();
  Sink sink(ends.write.get(), 100'000);
  std::string expected;
  for (int line = 0; !sink.full(); ++line) {
    const std::string text(100, static_cast<char>('a' + line % 26));
    sink.add(0, "", {text, LineEnd::newline});
    expected += text + "\n";
    REQUIRE(sink.flush());
  }
  CHECK_FALSE(sink.empty());
  CHECK((drain(sink, ends.read) == expected));  // not expanded: it is long
  CHECK_FALSE(sink.full());
}

TEST_CASE("the open file of others stays blocking") {
  const Ends ends = pipe_ends();
  Sink sink(ends.write.get(), 1000);
  sink.add_line("x");
  REQUIRE(sink.flush());
  CHECK((::fcntl(ends.write.get(), F_GETFL) & O_NONBLOCK) == 0);
}

TEST_CASE("when the reader is gone the error is kept and lines are dropped") {
  ::signal(SIGPIPE, SIG_IGN);
  Ends ends = pipe_ends();
  Sink sink(ends.write.get(), 1000);
  ends.read.reset();
  sink.add_line("x");
  CHECK_FALSE(sink.flush());
  CHECK(sink.error() == EPIPE);
  sink.add_line("y");
  CHECK(sink.empty());
}

TEST_CASE("two descriptors of one pipe are the same file, two pipes are not") {
  const Ends one = pipe_ends();
  const Ends other = pipe_ends();
  const Fd copy(::dup(one.write.get()));
  CHECK(same_file(one.write.get(), copy.get()));
  CHECK_FALSE(same_file(one.write.get(), other.write.get()));
}

}  // namespace
}  // namespace hora
