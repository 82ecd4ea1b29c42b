// The command line of ssh: what a user chose is in it, no secret can be, and a shell takes it.
#include "launcher/ssh_command.h"

#include <algorithm>
#include <cstdio>

#include <catch2/catch.hpp>

namespace hora {
namespace {

using Words = std::vector<std::string>;

bool has(const Words& words, const Words& part) {
  return std::search(words.begin(), words.end(), part.begin(), part.end()) != words.end();
}

// What a shell prints for a command.
std::string output_of(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char buffer[256];
  while (std::fgets(buffer, sizeof buffer, pipe) != nullptr)
    text += buffer;
  ::pclose(pipe);
  return text;
}

TEST_CASE("ssh command: ssh must not ask, and gets what the user chose") {
  const Words plain = make_ssh_command({}, "node2");
  CHECK(plain.front() == "ssh");
  CHECK(has(plain, {"-o", "BatchMode=yes"}));
  CHECK_FALSE(has(plain, {"-p"}));
  CHECK_FALSE(has(plain, {"-i"}));
  CHECK(plain[plain.size() - 2] == "node2");
  SshOptions options;
  options.program = {"/usr/bin/ssh", "-F", "config"};
  options.port = 2222;
  options.identity_file = "key";
  options.connect_timeout_s = 7;
  const Words chosen = make_ssh_command(options, "node2");
  CHECK(has(chosen, {"/usr/bin/ssh", "-F", "config"}));
  CHECK(has(chosen, {"-p", "2222"}));
  CHECK(has(chosen, {"-i", "key"}));
  CHECK(has(chosen, {"-o", "ConnectTimeout=7"}));
}

TEST_CASE("ssh command: another program gets host and command alone") {
  SshOptions options;
  options.program = {"./reach", "-v"};
  const Words words = make_ssh_command(options, "node2");
  REQUIRE(words.size() == 4);
  CHECK(Words(words.begin(), words.begin() + 3) == Words{"./reach", "-v", "node2"});
}

TEST_CASE("ssh command: the script runs the wanted program, whatever its name") {
  SshOptions options;
  options.remote_horarun = "echo";
  CHECK(output_of(make_ssh_command(options, "h").back()) == "--host-agent\n");
  options.remote_horarun = "it's $HOME \"x\"";
  CHECK(output_of("(" + make_ssh_command(options, "h").back() + ") 2>&1; echo $?") ==
        "horarun: no it's $HOME \"x\" on this host\n127\n");
}

TEST_CASE("ssh command: without a choice this program's path comes before the PATH") {
  SshOptions options;
  options.own_horarun = "/bin/echo";
  CHECK(output_of(make_ssh_command(options, "h").back()) == "--host-agent\n");
  options.own_horarun = "/no/such/horarun";
  CHECK(output_of("PATH=/bin " +
                  ("sh -c " + show_command({make_ssh_command(options, "h").back()})) + " 2>&1") ==
        "horarun: no horarun on this host\n");
}

TEST_CASE("ssh command: it is shown as one could type it") {
  CHECK(show_command({"ssh", "-p", "22", "a b", "it's", ""}) == R"(ssh -p 22 'a b' 'it'\''s' '')");
}

TEST_CASE("ssh command: words are split at blanks") {
  CHECK(split_words("  ssh -F  x ") == Words{"ssh", "-F", "x"});
  CHECK(split_words(" ").empty());
}

}  // namespace
}  // namespace hora
