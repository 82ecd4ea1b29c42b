// Whole Runtimes: a world of four in one process, as four threads, over sockets and
// over shared memory.
//
// Nothing is global: every rank has its own Runtime, and they meet at an abstract unix socket
// that rank 0 serves. Assertions stay on the test's thread; ranks return what went wrong as text,
// empty if nothing did.
#include "runtime/runtime.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/elastic/job_threads.h"

namespace hora::test {
namespace {

constexpr int kSize = 4;

/// Long enough for a busy machine; a test that reaches it has failed.
Deadline patience() {
  return Deadline::after(60s);
}

Config config_for(const std::string& transport) {
  Config config = quick_config();
  config.transport = transport;
  config.arena_bytes = 8 << 20;
  config.heartbeat_timeout_ms = 20000;
  return config;
}

Request request_of(const std::string& name, std::int64_t count) {
  Request request;
  request.name = name;
  request.shape = {count};
  return request;
}

/// Sums `count` elements of rank + 1 over all ranks. What went wrong, or nothing.
std::string sum_on(Runtime& runtime, const std::string& name, std::int64_t count) {
  const std::vector<float> input(static_cast<std::size_t>(count),
                                 static_cast<float>(runtime.world()->self.value + 1));
  std::vector<float> output(input.size());
  auto handle = runtime.submit({request_of(name, count), input.data(), output.data(), true});
  if (!handle) return handle.error().message;
  const auto done = runtime.wait(*handle, patience(), nullptr);
  if (!done) return done.error().message;
  const int size = runtime.world()->size();
  const std::vector<float> expected(input.size(), static_cast<float>(size * (size + 1) / 2));
  return output == expected ? "" : name + ": a wrong sum";
}

using Body = std::function<std::string(Runtime& runtime, int rank)>;

/// Starts a job and runs `body` on every rank's thread. Over "mixed" there are two hosts, with
/// memory shared inside of each: the even ranks, and the odd ones. Over "one apart" all ranks have
/// one host id, but the last passes no memory.
std::vector<std::string> run_job(const Config& config, const Body& body) {
  const std::string meeting = "unix:" + fresh_unix_name();
  return on_all_ranks<std::string>(kSize, [&](int rank) -> std::string {
    Placement placement = placement_at(meeting, rank, kSize);
    placement.source = "environment";
    placement.serve = rank == 0;
    Config own = config;
    if (config.transport == "mixed") {
      own.transport.clear();
      own.host_id = rank % 2 == 0 ? "even" : "odd";
    }
    if (config.transport == "one apart") own.transport = rank + 1 == kSize ? "tcp" : "";
    auto runtime = Runtime::start(own, placement);
    if (!runtime) return "start: " + runtime.error().message;
    return body(**runtime, rank);
  });
}

void require_fine(const std::vector<std::string>& results) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    INFO("rank " << rank);
    CHECK(results[rank] == "");
  }
}

}  // namespace

TEST_CASE("runtime: four ranks in one process are a world of four") {
  for (const char* transport : {"tcp", "shm", "mixed"}) {
    INFO(transport);
    require_fine(run_job(config_for(transport), [](Runtime& runtime, int rank) -> std::string {
      if (runtime.world()->self != Rank(rank) || runtime.world()->size() != kSize) return "place";
      for (const std::int64_t count : {0, 1, 1000, 300000}) {
        const std::string wrong = sum_on(runtime, "sum" + std::to_string(count), count);
        if (!wrong.empty()) return wrong;
      }
      if (runtime.stats().collectives != 4) return "counts";
      runtime.shutdown("");
      return {};
    }));
  }
}

TEST_CASE("runtime: hierarchical sums any size, whoever shares memory with whom") {
  for (const char* transport : {"tcp", "shm", "mixed", "one apart"}) {
    INFO(transport);
    Config config = config_for(transport);
    config.algorithm = "hierarchical";
    require_fine(run_job(config, [](Runtime& runtime, int) -> std::string {
      for (const std::int64_t count : {0, 1, 5, 1000, 300000}) {
        const std::string wrong = sum_on(runtime, "sum" + std::to_string(count), count);
        if (!wrong.empty()) return wrong;
      }
      return {};
    }));
  }
}

TEST_CASE("runtime: several threads of each rank submit and wait at once") {
  for (const char* transport : {"tcp", "shm", "mixed"}) {
    INFO(transport);
    require_fine(run_job(config_for(transport), [](Runtime& runtime, int) -> std::string {
      constexpr int kThreads = 3, kCalls = 40;
      const auto wrong = on_all_ranks<std::string>(kThreads, [&](int thread) -> std::string {
        for (int call = 0; call < kCalls; ++call) {
          const std::string name = std::to_string(thread) + "." + std::to_string(call);
          const std::string error = sum_on(runtime, name, 1 + call * 97 % 5000);
          if (!error.empty()) return error;
        }
        return {};
      });
      for (const std::string& one : wrong) {
        if (!one.empty()) return one;
      }
      return {};
    }));
  }
}

TEST_CASE("runtime: calls that nobody waits for go on by themselves") {
  require_fine(run_job(config_for("tcp"), [](Runtime& runtime, int) -> std::string {
    std::vector<std::vector<float>> memory(50, std::vector<float>(100, 1.0f));
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < memory.size(); ++i) {
      float* data = memory[i].data();
      auto handle = runtime.submit({request_of("a" + std::to_string(i), 100), data, data, false});
      if (!handle) return handle.error().message;
      handles.push_back(*handle);
    }
    const Deadline deadline = patience();
    for (const Handle& handle : handles) {
      while (!runtime.poll(handle)) {
        if (deadline.passed(steady_now())) return "not done";
        std::this_thread::yield();
      }
      if (!handle->outcome()) return handle->outcome().error().message;
    }
    return memory == std::vector<std::vector<float>>(50, std::vector<float>(100, 4.0f)) ? ""
                                                                                        : "sums";
  }));
}

TEST_CASE("runtime: a wait ends at its deadline or when it is interrupted; the call goes on") {
  std::atomic<bool> looked{false};
  require_fine(run_job(config_for("tcp"), [&](Runtime& runtime, int rank) -> std::string {
    if (rank == 0) {
      std::vector<float> memory(10, 1.0f);
      auto handle = runtime.submit({request_of("late", 10), memory.data(), memory.data(), true});
      if (!handle) return handle.error().message;
      const auto early = runtime.wait(*handle, Deadline::after(1ms), nullptr);
      if (early || early.error().kind != ErrorKind::timeout) return "no deadline";
      const auto broken = runtime.wait(*handle, patience(), [] { return true; });
      if (broken || broken.error().kind != ErrorKind::interrupted) return "not interrupted";
      looked.store(true);
      looked.notify_all();
      const auto done = runtime.wait(*handle, patience(), nullptr);
      if (!done) return done.error().message;
      return memory == std::vector<float>(10, 10.0f) ? "" : "a wrong sum";
    }
    looked.wait(false);
    return sum_on(runtime, "late", 10);
  }));
}

TEST_CASE("runtime: after one rank has left, calls of the others fail with its last words") {
  require_fine(run_job(config_for("tcp"), [](Runtime& runtime, int rank) -> std::string {
    const std::string first = sum_on(runtime, "together", 1000);
    if (!first.empty()) return first;
    if (rank == 2) runtime.shutdown("ValueError: no data");
    const std::string error = sum_on(runtime, "alone", 1000);
    if (error.empty()) return "a sum without rank 2";
    if (rank != 2 && error.find("ValueError: no data") == std::string::npos) return error;
    runtime.shutdown("");
    runtime.shutdown("");
    return {};
  }));
}

TEST_CASE("runtime: a rank that leaves at once keeps no other from starting") {
  for (const char* transport : {"tcp", "shm", "mixed"}) {
    for (int life = 0; life < 40; ++life) {
      INFO(transport << ", life " << life);
      require_fine(run_job(config_for(transport), [&](Runtime& runtime, int rank) -> std::string {
        if (rank == life % kSize) runtime.shutdown("");
        const std::string error = sum_on(runtime, "alone", 10);
        return error.find("has been shut down") == std::string::npos ? error : "";
      }));
    }
  }
}

TEST_CASE("runtime: a call that one rank alone gets wrong fails everywhere, and the job goes on") {
  require_fine(run_job(config_for("shm"), [](Runtime& runtime, int rank) -> std::string {
    for (int time = 0; time < 3; ++time) {
      if (rank == 1) {
        float value = 1;
        Request wrong = request_of("x", -1);
        if (runtime.submit({wrong, &value, &value, true})) return "a negative dimension";
        continue;
      }
      const std::string error = sum_on(runtime, "x", 10);
      if (error.find("the call of rank 1") == std::string::npos) return "not told: " + error;
    }
    return sum_on(runtime, "x", 10);
  }));
}

TEST_CASE("runtime: without an engine thread callers that wait do everything") {
  for (const char* transport : {"tcp", "shm", "mixed"}) {
    INFO(transport);
    Config config = config_for(transport);
    config.engine_thread = false;
    require_fine(run_job(config, [](Runtime& runtime, int) -> std::string {
      for (int call = 0; call < 30; ++call) {
        const std::string error = sum_on(runtime, std::to_string(call), 1 + call * 500);
        if (!error.empty()) return error;
      }
      return {};
    }));
  }
}

TEST_CASE("runtime: jobs come and go in one process and leave no descriptor") {
  const auto one = [](const char* transport) {
    require_fine(run_job(config_for(transport),
                         [](Runtime& runtime, int) { return sum_on(runtime, "x", 5000); }));
  };
  one("mixed");
  const std::size_t before = open_descriptors();
  for (int life = 0; life < 5; ++life) {
    one("tcp");
    one("shm");
    one("mixed");
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("runtime: nonsense is refused where it is submitted") {
  auto runtime = Runtime::start(config_for(""), Placement{});
  REQUIRE(runtime);
  float value = 1;
  Request broadcast = request_of("x", 1);
  broadcast.kind = Kind::broadcast;
  broadcast.root = 1;
  const auto root = (*runtime)->submit({broadcast, &value, &value, true});
  REQUIRE_FALSE(root);
  CHECK(root.error().kind == ErrorKind::invalid_argument);
  const auto negative = (*runtime)->submit({request_of("x", -1), &value, &value, true});
  REQUIRE_FALSE(negative);
  CHECK(negative.error().kind == ErrorKind::invalid_argument);
  CHECK(sum_on(**runtime, "x", 3).empty());
}

}  // namespace hora::test
