#include "runtime/timeline.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/fd.h"

namespace hora {
namespace {

constexpr std::size_t kPage = 4096;
constexpr Duration kWriteEvery = 50ms;

struct Event {
  char phase = 'B';
  TimePoint at;
  std::string tensor;
  std::string name;
  std::string args;  // JSON, or empty
};

/// Any bytes as the inside of a JSON string.
std::string json_text(std::string_view bytes) {
  std::string text;
  for (const char c : name_text(bytes)) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text;
}

/// Writes all of it. 0, or why not.
int write_at(int fd, std::string_view text, std::size_t offset) {
  while (!text.empty()) {
    const ssize_t wrote = ::pwrite(fd, text.data(), text.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return wrote < 0 ? errno : EIO;
    text.remove_prefix(static_cast<std::size_t>(wrote));
    offset += static_cast<std::size_t>(wrote);
  }
  return 0;
}

/// The file: a JSON array that is complete between any two writes, and within them.
///
///   [ event , event ,  event ........ spaces ........ ]
///   |  page  |  page  |  page  |  page  |  page  |  page
///
/// The bracket stands at the end from the start, and events are written over spaces. A kill can cut
/// a write only between two pages, so no write crosses one: what does not fit a page begins the
/// next, and the spaces left between are spaces. When the file is full, a larger one takes its
/// place by a rename.
class TraceFile {
 public:
  explicit TraceFile(std::string path) : path_(std::move(path)) {}

  /// Makes the file. 0, or why not.
  int start() { return rebuild(kFirstCapacity); }

  /// Adds an event. It may stay in memory until `sync`.
  void add(const std::string& json) {
    const std::size_t bytes = json.size() + 2;            // with ",\n"
    if (failed_ || bytes > kPage - kOpen.size()) return;  // such a name is none of ours
    if (end_ + pending_.size() + bytes > page_end(end_)) {
      sync();
      if (end_ + bytes > page_end(end_)) end_ = page_end(end_);
    }
    if (end_ + pending_.size() + bytes + kClose.size() > capacity_) {
      sync();
      failed_ = rebuild(2 * capacity_) != 0;
    }
    if (events_++ > 0) pending_ += ",\n";
    pending_ += json;
  }

  /// Writes what is pending, all within a page.
  void sync() {
    if (!failed_ && write_at(fd_.get(), pending_, end_) != 0) failed_ = true;
    end_ += pending_.size();
    pending_.clear();
  }

  /// Ends the file after the last event.
  void finish() {
    sync();
    if (!failed_) (void)rebuild(end_ + kClose.size());
  }

 private:
  static constexpr std::string_view kOpen = "[\n", kClose = "]\n";
  static constexpr std::size_t kBlock = 16 * kPage, kFirstCapacity = kBlock;

  static std::size_t page_end(std::size_t offset) { return (offset / kPage + 1) * kPage; }

  /// Replaces the file by one of this capacity with the same events. 0, or why not; then
  /// the old one stays.
  int rebuild(std::size_t capacity) {
    const std::string part = path_ + ".part";
    Fd fd(::open(part.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!fd.valid()) return errno;
    int reason = fill(fd.get(), capacity);
    if (reason == 0 && ::rename(part.c_str(), path_.c_str()) != 0) reason = errno;
    if (reason != 0) {
      ::unlink(part.c_str());
      return reason;
    }
    fd_ = std::move(fd);
    capacity_ = capacity;
    return 0;
  }

  /// Writes opening, events so far, spaces, bracket.
  int fill(int fd, std::size_t capacity) {
    std::string block(kBlock, ' ');
    const std::size_t body = capacity - kClose.size();
    // The next write may go beyond the bracket that the old file ends with.
    const std::size_t events_end = fd_.valid() ? std::min(end_, capacity_ - kClose.size()) : 0;
    for (std::size_t offset = 0; offset < body;) {
      std::size_t bytes = std::min(kBlock, body - offset);
      if (offset < events_end) {
        const std::size_t wanted = std::min(bytes, events_end - offset);
        const ssize_t got = ::pread(fd_.get(), block.data(), wanted, static_cast<off_t>(offset));
        if (got <= 0) return got < 0 ? errno : EIO;
        bytes = static_cast<std::size_t>(got);
      } else {
        block.assign(kBlock, ' ');
      }
      const std::string_view text(block.data(), bytes);
      if (const int reason = write_at(fd, text, offset); reason != 0) return reason;
      offset += bytes;
    }
    if (const int reason = write_at(fd, kOpen, 0); reason != 0) return reason;
    return write_at(fd, kClose, body);
  }

  std::string path_;
  Fd fd_;
  std::size_t capacity_ = 0;
  std::size_t end_ = kOpen.size();  // where the next write goes
  std::uint64_t events_ = 0;
  std::string pending_;
  bool failed_ = false;  // a full disk, say: what is there stays, complete
};

}  // namespace

std::string_view negotiate_phase(const Request& request) {
  switch (request.kind) {
    case Kind::allreduce:
      return request.op == ReduceOp::adasum ? "NEGOTIATE_ADASUM" : "NEGOTIATE_ALLREDUCE";
    case Kind::allgather:
      return "NEGOTIATE_ALLGATHER";
    case Kind::broadcast:
      return "NEGOTIATE_BROADCAST";
    case Kind::barrier:
      return "NEGOTIATE_BARRIER";
    case Kind::reducescatter:
      return "NEGOTIATE_REDUCESCATTER";
    case Kind::alltoall:
      return "NEGOTIATE_ALLTOALL";
    case Kind::join:
      return "NEGOTIATE_JOIN";
    case Kind::add_set:
      return "NEGOTIATE_ADD_PROCESS_SET";
    case Kind::remove_set:
      return "NEGOTIATE_REMOVE_PROCESS_SET";
  }
  return "NEGOTIATE";
}

std::string timeline_path(const std::string& pattern, Rank rank) {
  if (pattern.find("%r") == std::string::npos && rank != Rank(0)) return {};
  std::string path = pattern;
  const std::string number = std::to_string(rank.value);
  for (std::size_t at = 0; (at = path.find("%r", at)) != std::string::npos; at += number.size()) {
    path.replace(at, 2, number);
  }
  return path;
}

/// The queue and the thread. The mutex guards the queue; the file belongs to the thread.
class Timeline::Writer {
 public:
  Writer(TraceFile file, std::size_t limit) : file_(std::move(file)), limit_(limit) {
    // Signals are for the threads of the application.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Writer() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void push(Event event) {
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      if (queue_.size() >= limit_) {
        ++dropped_;
        return;
      }
      queue_.push_back(std::move(event));
      ++added_;
      first = queue_.size() == 1;
    }
    // Later ones need not wake anybody: the thread is on its way, and batches.
    if (first) changed_.notify_all();
  }

  bool flush(Deadline deadline) {
    std::unique_lock lock(mutex_);
    const std::uint64_t target = added_;
    hurry_ = true;
    changed_.notify_all();
    return changed_.wait_until(lock, deadline.at, [&] { return written_ >= target; });
  }

  std::uint64_t dropped() {
    const std::lock_guard lock(mutex_);
    return dropped_;
  }

 private:
  void run() {
    write_start();
    std::vector<Event> batch;
    for (bool closing = false; !closing;) {
      std::uint64_t dropped = 0;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return closing_ || hurry_ || !queue_.empty(); });
        changed_.wait_for(lock, kWriteEvery, [&] { return closing_ || hurry_; });
        hurry_ = false;
        closing = closing_;
        batch.swap(queue_);
        dropped = dropped_ - dropped_reported_;
        dropped_reported_ = dropped_;
      }
      for (const Event& event : batch)
        write(event);
      if (dropped > 0) write_dropped(dropped);
      file_.sync();
      const std::size_t wrote = batch.size();
      batch.clear();
      if (closing) file_.finish();
      {
        const std::lock_guard lock(mutex_);
        written_ += wrote;
      }
      changed_.notify_all();
    }
  }

  std::uint64_t micros(TimePoint at) const {
    const auto since = std::chrono::duration_cast<std::chrono::microseconds>(at - start_).count();
    return since < 0 ? 0 : static_cast<std::uint64_t>(since);
  }

  void write_start() {
    const auto epoch = std::chrono::system_clock::now().time_since_epoch();
    const auto now = std::chrono::duration_cast<std::chrono::microseconds>(epoch).count();
    file_.add(R"({"name":"process_name","ph":"M","pid":0,"args":{"name":"hora",)"
              R"("start_time_since_epoch_in_micros":)" +
              std::to_string(now) + "}}");
    file_.sync();
  }

  void write_dropped(std::uint64_t count) {
    file_.add(R"({"name":"DROPPED_EVENTS","ph":"i","s":"g","pid":0,"ts":)" +
              std::to_string(micros(steady_now())) + R"(,"args":{"count":)" +
              std::to_string(count) + "}}");
  }

  /// A tensor as a "process" of the trace.
  struct Process {
    std::uint64_t pid = 0;
    std::uint32_t open_spans = 0;
  };

  /// The "process" of a tensor; introduces it at first sight.
  Process& process_of(const std::string& tensor) {
    const auto [found, fresh] = processes_.try_emplace(tensor);
    if (fresh) {
      found->second.pid = processes_.size();
      const std::string pid = std::to_string(found->second.pid);
      file_.add(R"({"name":"process_name","ph":"M","pid":)" + pid + R"(,"args":{"name":")" +
                json_text(tensor) + "\"}}");
      file_.add(R"({"name":"process_sort_index","ph":"M","pid":)" + pid +
                R"(,"args":{"sort_index":)" + pid + "}}");
    }
    return found->second;
  }

  void write(const Event& event) {
    std::uint64_t pid = 0;
    if (event.phase != 'i') {
      Process& process = process_of(event.tensor);
      if (event.phase == 'E' && process.open_spans == 0) return;  // It began before the file.
      if (event.phase == 'B') ++process.open_spans;
      if (event.phase == 'E') --process.open_spans;
      pid = process.pid;
    }
    std::string json = R"({"ph":")";
    json += event.phase;
    json += R"(","ts":)" + std::to_string(micros(event.at));
    json += R"(,"pid":)" + std::to_string(pid);
    if (!event.name.empty()) json += R"(,"name":")" + json_text(event.name) + "\"";
    if (event.phase == 'X') json += R"(,"dur":0)";
    if (event.phase == 'i') json += R"(,"s":"g")";
    if (!event.args.empty()) json += R"(,"args":)" + event.args;
    file_.add(json + "}");
  }

  TraceFile file_;
  const std::size_t limit_;
  const TimePoint start_ = steady_now();
  std::unordered_map<std::string, Process> processes_;  // the thread's

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Event> queue_;
  std::uint64_t added_ = 0, written_ = 0, dropped_ = 0, dropped_reported_ = 0;
  bool closing_ = false, hurry_ = false;
  std::thread thread_;
};

Timeline::Timeline() = default;
Timeline::Timeline(std::unique_ptr<Writer> writer, bool mark_cycles)
    : writer_(std::move(writer)), mark_cycles_(mark_cycles) {}
Timeline::~Timeline() = default;
Timeline::Timeline(Timeline&&) noexcept = default;
Timeline& Timeline::operator=(Timeline&&) noexcept = default;

Result<Timeline> Timeline::open(const std::string& path, const TimelineOptions& options) {
  struct stat existing {};
  if (::lstat(path.c_str(), &existing) == 0 && !S_ISREG(existing.st_mode)) {
    return fail(ErrorKind::invalid_argument,
                "timeline file '" + path + "' is there already and is not a regular file");
  }
  TraceFile file(path);
  if (const int reason = file.start(); reason != 0) {
    errno = reason;
    return fail_errno("timeline file '" + path + "'");
  }
  try {
    return Timeline(std::make_unique<Writer>(std::move(file), options.queue_limit),
                    options.mark_cycles);
  } catch (const std::system_error& error) {
    return fail(ErrorKind::resource, std::string("timeline thread: ") + error.what());
  }
}

void Timeline::add(char phase, std::string_view tensor, std::string_view name) {
  writer_->push({phase, steady_now(), std::string(tensor), std::string(name), {}});
}

void Timeline::add_end(std::string_view tensor, DType dtype,
                       const std::vector<std::int64_t>& shape) {
  std::string args = R"({"dtype":")" + std::string(to_string(dtype)) + R"(","shape":")" +
                     shape_text(shape) + "\"}";
  writer_->push({'E', steady_now(), std::string(tensor), {}, std::move(args)});
}

bool Timeline::flush(Deadline deadline) {
  return !on() || writer_->flush(deadline);
}

std::uint64_t Timeline::dropped() const {
  return on() ? writer_->dropped() : 0;
}

void Timeline::on_fork_child() {
  // The thread does not exist here, and the queue may be locked for ever: leave
  // both where they are.
  (void)writer_.release();
  mark_cycles_ = false;
}

}  // namespace hora
