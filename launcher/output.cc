// Formatting costs one append per piece. The time stamp, one call of localtime per line, is paid
// only by those who ask for it. Files are written with plain write(): a local disk does not make us
// wait longer than a signal can.
#include "launcher/output.h"

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

namespace hora {
namespace {

constexpr std::array<const char*, 2> kStreamNames = {"stdout", "stderr"};

// "Fri Sep 11 07:07:20 2020", as Horovod writes it.
std::string local_time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  std::array<char, 64> text{};
  const std::size_t length =
      std::strftime(text.data(), text.size(), "%a %b %e %H:%M:%S %Y", &parts);
  return {text.data(), length};
}

}  // namespace

Output::Output(OutputOptions options) : options_(std::move(options)) {
  sinks_[0] = std::make_shared<Sink>(STDOUT_FILENO, options_.sink_capacity_bytes);
  sinks_[1] = same_file(STDOUT_FILENO, STDERR_FILENO)
                  ? sinks_[0]
                  : std::make_shared<Sink>(STDERR_FILENO, options_.sink_capacity_bytes);
  workers_.reserve(static_cast<std::size_t>(options_.workers));
  for (int rank = 0; rank < options_.workers; ++rank) {
    const LineSplitter splitter(options_.line_limit_bytes);
    workers_.push_back(
        {{Channel{splitter, fmt::format("[{}]<{}>:", rank, kStreamNames[0]), Fd(), {}},
          Channel{splitter, fmt::format("[{}]<{}>:", rank, kStreamNames[1]), Fd(), {}}},
         Tail(options_.tail_lines, options_.tail_width_bytes)});
  }
}

Result<std::unique_ptr<Output>> Output::make(OutputOptions options) {
  auto output = std::unique_ptr<Output>(new Output(std::move(options)));
  if (!output->options_.directory.empty()) HORA_TRY(output->open_files());
  return output;
}

Result<void> Output::open_files() {
  // Names of equal width sort in rank order.
  const std::size_t width = std::to_string(options_.workers - 1).size();
  for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
    const std::string directory = fmt::format("{}/rank.{:0{}}", options_.directory, rank, width);
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) {
      return fail(ErrorKind::system, fmt::format("--output-filename: cannot make '{}': {}",
                                                 directory, error.message()));
    }
    for (std::size_t stream = 0; stream < kStreamNames.size(); ++stream) {
      const std::string path = fmt::format("{}/{}", directory, kStreamNames[stream]);
      Fd& file = workers_[rank].channels[stream].file;
      file = Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
      if (!file.valid())
        return fail_errno(fmt::format("--output-filename: cannot open '{}'", path));
    }
  }
  return {};
}

void Output::on_bytes(Rank rank, Stream stream, std::string_view bytes) {
  Channel& channel = workers_[index_of(rank)].channels[static_cast<std::size_t>(stream)];
  channel.splitter.feed(bytes, [&](const Piece& piece) { emit(rank, stream, piece); });
  write_file(channel);
}

void Output::on_end(Rank rank, Stream stream) {
  Channel& channel = workers_[index_of(rank)].channels[static_cast<std::size_t>(stream)];
  channel.splitter.finish([&](const Piece& piece) { emit(rank, stream, piece); });
  write_file(channel);
  channel.file.reset();
}

void Output::emit(Rank rank, Stream stream, const Piece& piece) {
  Worker& worker = workers_[index_of(rank)];
  Channel& channel = worker.channels[static_cast<std::size_t>(stream)];
  if (stream == Stream::err) worker.tail.add(piece);
  const int id = rank.value * 2 + static_cast<int>(stream);
  const std::string stamped = options_.timestamp ? local_time_text() + channel.prefix : "";
  const std::string& prefix = options_.timestamp ? stamped : channel.prefix;
  sink(stream).add(id, prefix, piece);
  if (!channel.file.valid()) return;
  if (piece.end != LineEnd::newline_after_return) channel.file_text += prefix;
  channel.file_text += piece.text;
  channel.file_text += piece.end == LineEnd::carriage_return ? '\r' : '\n';
}

// A full disk must not end a job of three days: it is said once, and the lines still go
// to our own outputs.
void Output::write_file(Channel& channel) {
  const std::string text = std::exchange(channel.file_text, {});
  std::string_view bytes = text;
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(channel.file.get(), bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      say(fmt::format("horarun: --output-filename: the file of {} is incomplete: {}",
                      channel.prefix.substr(0, channel.prefix.size() - 1), std::strerror(errno)));
      channel.file.reset();
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

}  // namespace hora
