// Output: what the workers write, on its way to horarun's stdout and stderr and to files.
//
//   worker 1's stdout ---> LineSplitter ---> "[1]<stdout>:text\n" ---> Sink of our stdout
//                                              \---> DIR/rank.1/stdout, the same lines
//   worker 1's stderr ---> LineSplitter ---> "[1]<stderr>:text\n" ---> Sink of our stderr
//                                         |    \---> DIR/rank.1/stderr
//                                         \---> Tail, for the message about its death
//
// When our stdout and stderr are the same thing (2>&1, a terminal) they share one Sink, or a slow
// reader would see one's line inside the other's.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/sink.h"
#include "launcher/tail.h"
#include "runtime/base/fd.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"

namespace hora {

enum class Stream { out = 0, err = 1 };

struct OutputOptions {
  int workers = 0;
  std::string directory;  ///< Empty: no files.
  bool timestamp = false;
  std::size_t line_limit_bytes = 1 << 20;
  std::size_t sink_capacity_bytes = 1 << 20;
  std::size_t tail_lines = 20;
  std::size_t tail_width_bytes = 2000;
};

/// Owner: the supervisor.
class Output {
 public:
  /// Makes the directory and its files.
  static Result<std::unique_ptr<Output>> make(OutputOptions options);

  /// Bytes that a worker wrote. Splits, prefixes and queues them.
  void on_bytes(Rank rank, Stream stream, std::string_view bytes);
  /// The stream has ended.
  void on_end(Rank rank, Stream stream);
  /// A line of horarun's own, on stderr.
  void say(std::string_view text) { sink(Stream::err).add_line(text); }

  /// Where a stream's lines go.
  [[nodiscard]] Sink& sink(Stream stream) { return *sinks_[static_cast<std::size_t>(stream)]; }
  /// The last lines of a worker's stderr.
  [[nodiscard]] const Tail& tail(Rank rank) const { return workers_[index_of(rank)].tail; }

 private:
  struct Channel {
    LineSplitter splitter;
    std::string prefix;
    Fd file;
    std::string file_text;  ///< Not written yet.
  };
  struct Worker {
    std::array<Channel, 2> channels;
    Tail tail;
  };

  explicit Output(OutputOptions options);
  Result<void> open_files();
  void emit(Rank rank, Stream stream, const Piece& piece);
  void write_file(Channel& channel);

  OutputOptions options_;
  std::array<std::shared_ptr<Sink>, 2> sinks_;
  std::vector<Worker> workers_;
};

}  // namespace hora
