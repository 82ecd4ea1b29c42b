// Spawn: the child starts as horarun was started, and a failure to start comes back as words.
//
// What the child got is read from its output; the program is a shell, and the paths are in
// a folder made here.
#include "launcher/spawn.h"

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hora {
namespace {

using Catch::Matchers::Contains;

// A folder that is gone after the test.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "hora_spawn_XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  [[nodiscard]] std::string path() const { return path_; }
  [[nodiscard]] std::string file(const std::string& name, const std::string& text,
                                 mode_t mode) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path) << text;
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    return path;
  }

 private:
  std::string path_;
};

std::string read_all(const Fd& fd) {
  std::string text;
  std::array<char, 4096> buffer;
  while (true) {
    pollfd ready = {fd.get(), POLLIN, 0};
    REQUIRE(::poll(&ready, 1, 20'000) == 1);
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

// Runs a shell script; its standard output.
std::string output_of(const std::string& script, const Inherited& inherited) {
  const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::string shell = "/bin/sh";
  const std::vector<std::string> arguments = {"sh", "-c", script};
  const Environment environment = {"PATH=/usr/bin:/bin", "GREETING=hello"};
  Result<Spawned> worker = spawn({shell, arguments, environment, inherited}, null.get());
  if (!worker) FAIL(worker.error().message);
  std::string text = read_all(worker->out);
  REQUIRE(::waitpid(worker->pid, nullptr, 0) == worker->pid);
  return text;
}

TEST_CASE("a worker has our environment, a process group of its own, and an empty input") {
  CHECK(output_of("echo $GREETING; cat", read_inherited()) == "hello\n");
  CHECK(output_of("set -- $(cut -d' ' -f5 /proc/self/stat); [ $1 = $$ ] && echo own",
                  read_inherited()) == "own\n");
}

// The descriptors of this process that a child may inherit, and the three that every worker has.
std::set<int> inheritable_descriptors() {
  std::set<int> result = {0, 1, 2};
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) result.insert(fd);
  }
  return result;
}

// The signals that a process blocks and ignores; `pid` may be $$. The shell itself reads, since
// some shells block everything while they start a program.
std::string signals_of(const std::string& pid, const Inherited& inherited) {
  return output_of(
      "while read name value; do case $name in SigBlk:|SigIgn:) echo $name $value;; "
      "esac; done < /proc/" +
          pid + "/status",
      inherited);
}

TEST_CASE("a worker has no descriptor of ours, but those that we were given") {
  const Fd ours(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  REQUIRE(ours.valid());
  const std::set<int> expected = inheritable_descriptors();
  std::istringstream listed(output_of("ls /proc/$$/fd", read_inherited()));
  CHECK(std::set<int>(std::istream_iterator<int>(listed), {}) == expected);
}

TEST_CASE("a worker's signals are as they were inherited, not as we use them") {
  const Inherited inherited = read_inherited();
  const std::string before = signals_of(std::to_string(::getpid()), inherited);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGWINCH);
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
  const auto handler = ::signal(SIGWINCH, SIG_IGN);
  const std::string ours = signals_of(std::to_string(::getpid()), inherited);
  const std::string workers = signals_of("$$", inherited);
  ::signal(SIGWINCH, handler);
  ::sigprocmask(SIG_SETMASK, &inherited.signal_mask, nullptr);
  CHECK(ours != before);
  CHECK(workers == before);
}

TEST_CASE("a file that is no program is reported with the reason") {
  const Folder folder;
  const std::string script = folder.file("script", "echo hi\n", 0755);
  const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Environment environment;
  const Inherited inherited = read_inherited();
  const auto result = spawn({script, {script}, environment, inherited}, null.get());
  REQUIRE_FALSE(result.has_value());
  CHECK_THAT(result.error().message, Contains(script) && Contains("#!/bin/sh"));
  CHECK(::waitpid(-1, nullptr, 0) > 0);
}

TEST_CASE("a command is searched in PATH unless it has a slash") {
  const Folder folder;
  const std::string tool = folder.file("tool", "#!/bin/sh\n", 0755);
  CHECK(find_program("tool", "/nonexistent:" + folder.path()).value() == tool);
  CHECK(find_program(tool, "").value() == tool);
  const auto missing = find_program("tool", "/nonexistent");
  CHECK(missing.error().exit_code == 127);
  CHECK(missing.error().message == "command 'tool' was not found in PATH");
  CHECK(find_program("", folder.path()).error().exit_code == 127);
  CHECK(find_program("/nonexistent/tool", "").error().exit_code == 127);
}

TEST_CASE("a file that may not be executed gives 126 and the way out") {
  const Folder folder;
  const std::string script = folder.file("train.py", "print()\n", 0644);
  for (const auto& found : {find_program(script, ""), find_program("train.py", folder.path())}) {
    CHECK(found.error().exit_code == 126);
    CHECK_THAT(found.error().message, Contains("python " + script));
  }
  CHECK_THAT(find_program(folder.path(), "").error().message, Contains("is a directory"));
}

}  // namespace
}  // namespace hora
