// Hosts as users write them: lists, both forms of a hostfile, and what mistakes say.
#include "launcher/hosts.h"

#include <catch2/catch.hpp>

#include "launcher/this_host.h"

namespace hora {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using Hosts = std::vector<Host>;

TEST_CASE("hosts are read as name and slots") {
  CHECK(parse_hosts("localhost:4").value() == Hosts{{"localhost", 4}});
  CHECK(parse_hosts("a-1.b_c:1,::1:2,[fe80::1%eth0]:3").value() ==
        Hosts{{"a-1.b_c", 1}, {"::1", 2}, {"fe80::1%eth0", 3}});
}

TEST_CASE("malformed hosts are named") {
  for (const char* text :
       {"", "a", "a:", ":1", "a:0", "a:-1", "a:x", "a:1x", "a:1,", ",a:1", "a:99999999999", "-o:1",
        "a b:1", "a;b:1", "a@b:1", "[]:1", "$(x):1", "a:1.5"}) {
    CAPTURE(text);
    const auto refused = parse_hosts(text);
    REQUIRE(!refused);
    CHECK_THAT(refused.error().message,
               StartsWith("Invalid host input, please make sure it has format as : "
                          "worker-0:2,worker-1:2.") &&
                   Contains("is not HOST:SLOTS"));
  }
  CHECK_THAT(parse_hosts("a:1,a:2").error().message, Contains("'a' is named twice"));
}

TEST_CASE("a hostfile has a host a line, in two forms, with comments and blank lines") {
  const char* text = "# cluster\n\n  node1   slots=4 \t\nnode2:2 # the small one\r\n\n[::1]:1";
  CHECK(parse_hostfile(text, "f").value() == Hosts{{"node1", 4}, {"node2", 2}, {"::1", 1}});
}

TEST_CASE("mistakes in a hostfile are said with file and line") {
  for (const char* line :
       {"node1", "node1 slots=0", "node1 slots=", "node1 slots=x", "node1 4", "node1 slots = 4",
        "node1 slots=4 max_slots=5", "slots=4", "-x slots=1", "node1:x", "node1:0"}) {
    CAPTURE(line);
    const auto refused = parse_hostfile(std::string("a:1\n\n") + line, "hosts.txt");
    REQUIRE(!refused);
    CHECK_THAT(refused.error().message, StartsWith("hosts.txt:3: '") && Contains("HOST slots=N"));
  }
  CHECK(parse_hostfile("a:1\na slots=2\n", "f").error().message ==
        "f:2: 'a' is named twice; add its slots up");
  CHECK(parse_hostfile("# nothing\n", "f").error().message == "f: no hosts");
}

TEST_CASE("this machine has many names, and others are not it") {
  CHECK(is_this_host("localhost"));
  CHECK(is_this_host("127.0.0.1"));
  CHECK(is_this_host("127.9.9.9"));
  CHECK(is_this_host(own_name()));
  CHECK_FALSE(is_this_host("192.0.2.1"));
  CHECK_FALSE(is_this_host("no-such-host.invalid"));
}

}  // namespace
}  // namespace hora
