// `fields(io, struct)` lists the fields of a struct once; Writer appends them, Reader takes them.
// A kind is its struct's place in the variant.
#include "launcher/agent_messages.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <type_traits>
#include <utility>

#include "runtime/base/check.h"

namespace hora {
namespace {

constexpr std::size_t kHeaderBytes = 5;  // length of kind and fields, kind

template <class T, class... Types>
constexpr bool is_one_of = (std::is_same_v<std::remove_const_t<T>, Types> || ...);

class Writer {
 public:
  template <class T>
  bool number(const T& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    return true;
  }
  bool text(const std::string& value) {
    number(static_cast<std::uint32_t>(value.size()));
    bytes += value;
    return true;
  }
  template <class T, class Each>
  bool list(const std::vector<T>& values, const Each& each) {
    number(static_cast<std::uint32_t>(values.size()));
    for (const T& value : values)
      each(*this, value);
    return true;
  }

  std::string bytes;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left(bytes) {}

  template <class T>
  bool number(T& value) {
    if (left.size() < sizeof value) return false;
    std::memcpy(&value, left.data(), sizeof value);
    left.remove_prefix(sizeof value);
    return true;
  }
  bool text(std::string& value) {
    std::uint32_t length = 0;
    if (!number(length) || left.size() < length) return false;
    value.assign(left.substr(0, length));
    left.remove_prefix(length);
    return true;
  }
  template <class T, class Each>
  bool list(std::vector<T>& values, const Each& each) {
    std::uint32_t count = 0;
    if (!number(count)) return false;
    // Grows with what is really there: a count alone reserves nothing.
    for (std::uint32_t i = 0; i < count; ++i) {
      if (left.empty() || !each(*this, values.emplace_back())) return false;
    }
    return true;
  }

  std::string_view left;
};

constexpr auto kEachText = [](auto& io, auto& text) { return io.text(text); };

/// An enumerator, or a switch: one byte that must be less than `kinds`.
template <class Io, class T>
bool byte(Io& io, T& value, int kinds) {
  auto number = static_cast<std::uint8_t>(value);
  if (!io.number(number) || number >= kinds) return false;
  if constexpr (!std::is_const_v<T>) value = static_cast<T>(number);
  return true;
}

template <class Io, class T>
bool fields(Io&, T&) requires(is_one_of<T, StartWorkers, Ping, Finish, StdinTaken, Pong>) {
  return true;
}

template <class Io, class T>
bool fields(Io& io, T& m) requires(is_one_of<T, Slot>) {
  return io.text(m.host) && io.number(m.rank.value) && io.number(m.size) &&
         io.number(m.local_rank) && io.number(m.local_size) && io.number(m.cross_rank) &&
         io.number(m.cross_size);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires(is_one_of<T, Prepare>) {
  return io.text(m.job) && io.text(m.secret) && io.list(m.endpoints, kEachText) &&
         io.list(m.interfaces, kEachText) && io.list(m.arguments, kEachText) &&
         io.list(m.environment, kEachText) && io.text(m.directory) &&
         io.list(m.slots, [](auto& to, auto& slot) { return fields(to, slot); }) &&
         io.number(m.patience_ms) && io.number(m.silence_ms);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires(is_one_of<T, SignalWorkers>) {
  return byte(io, m.target, 3) && io.number(m.signo) && m.signo > 0 && m.signo < NSIG;
}

template <class Io, class T>
bool fields(Io& io, T& m) requires(is_one_of<T, StdinBytes>) {
  return io.text(m.bytes);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires(is_one_of<T, Consumed>) {
  return io.number(m.bytes);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires(is_one_of<T, Hello>) {
  return io.number(m.protocol) && io.text(m.version) && io.text(m.program) &&
         io.text(m.host_name) && io.text(m.ssh_client);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires(is_one_of<T, Ready>) {
  return io.text(m.endpoint) && io.text(m.address) && io.list(m.notes, kEachText);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires(is_one_of<T, Refused>) {
  return io.number(m.exit_code) && io.text(m.text);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires(is_one_of<T, Started>) {
  return io.number(m.rank.value) && io.number(m.pid);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires(is_one_of<T, OutputBytes>) {
  return io.number(m.rank.value) && byte(io, m.stream, 2) && io.text(m.bytes);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires(is_one_of<T, OutputEnd>) {
  return io.number(m.rank.value) && byte(io, m.stream, 2);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires(is_one_of<T, Exited>) {
  return io.number(m.rank.value) && byte(io, m.status.by_signal, 2) && io.number(m.status.number) &&
         byte(io, m.status.core_dumped, 2);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires(is_one_of<T, HostCensus>) {
  return io.number(m.workers) && byte(io, m.others, 2);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires(is_one_of<T, Note>) {
  return io.text(m.text);
}

template <class Message>
std::string encode_any(const Message& message) {
  Writer writer;
  writer.number(std::uint32_t{0});
  writer.number(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& one) { fields(writer, one); }, message);
  const std::size_t length = writer.bytes.size() - sizeof(std::uint32_t);
  HORA_CHECK(length <= kMostFrameBytes, "a message of the launcher is too long");
  const auto prefix = static_cast<std::uint32_t>(length);
  std::memcpy(writer.bytes.data(), &prefix, sizeof prefix);
  return std::move(writer.bytes);
}

// The struct of this kind; nothing if the fields do not fit it to the byte.
template <class Message, std::size_t kKind = 0>
std::optional<Message> decode(std::uint8_t kind, std::string_view body) {
  if constexpr (kKind < std::variant_size_v<Message>) {
    if (kind != kKind) return decode<Message, kKind + 1>(kind, body);
    std::variant_alternative_t<kKind, Message> one{};
    Reader reader(body);
    if (!fields(reader, one) || !reader.left.empty()) return std::nullopt;
    return Message(std::move(one));
  }
  return std::nullopt;
}

}  // namespace

std::string encode(const ToAgent& message) {
  return encode_any(message);
}

std::string encode(const FromAgent& message) {
  return encode_any(message);
}

template <class Message>
Result<std::optional<Message>> FrameReader<Message>::next() {
  const std::string_view left = std::string_view(buffer_).substr(read_);
  std::uint32_t length = 0;
  if (left.size() >= sizeof length) std::memcpy(&length, left.data(), sizeof length);
  const bool whole = left.size() >= kHeaderBytes && left.size() >= sizeof length + length;
  if (left.size() >= sizeof length && (length == 0 || length > kMostFrameBytes)) {
    return fail(ErrorKind::protocol, "a frame has an impossible length");
  }
  if (!whole) {
    buffer_.erase(0, std::exchange(read_, 0));
    return std::optional<Message>();
  }
  const auto kind = static_cast<std::uint8_t>(left[sizeof length]);
  auto message = decode<Message>(kind, left.substr(kHeaderBytes, length - 1));
  if (!message) return fail(ErrorKind::protocol, "a frame is none of ours");
  read_ += sizeof length + length;
  return message;
}

template class FrameReader<ToAgent>;
template class FrameReader<FromAgent>;

}  // namespace hora
