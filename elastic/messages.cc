// See messages.h. `fields(io, struct)` lists a struct's fields once; Writer appends them and Reader
// takes them, each answering false when it cannot. So a field that is added is added to both, and a
// bound that is missing does not compile.
#include "elastic/messages.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "runtime/base/check.h"

namespace hora {

namespace {

constexpr std::size_t kMostText = 4096;
constexpr std::size_t kMostAddresses = 64;
constexpr std::size_t kMostMembers = 65536;
constexpr std::size_t kMostLanes = 1024;
constexpr std::size_t kMostCollectives = 4096;  // In flight on a lane: a window of them.
constexpr std::size_t kMostAnswers = 65536;
constexpr std::size_t kMostBlob = std::size_t{8} << 20;

/// Appends fields.
class Writer {
 public:
  template <class T>
  bool number(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* p = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), p, p + sizeof value);
    return true;
  }
  bool text(const std::string& value) {
    const auto length = static_cast<std::uint16_t>(std::min(value.size(), kMostText));
    number(length);
    const auto* p = reinterpret_cast<const std::byte*>(value.data());
    bytes.insert(bytes.end(), p, p + length);
    return true;
  }
  bool blob(const std::vector<std::byte>& value) {
    const auto length = static_cast<std::uint32_t>(std::min(value.size(), kMostBlob));
    number(length);
    bytes.insert(bytes.end(), value.begin(), value.begin() + length);
    return true;
  }
  template <class T, class Each>
  bool list(const std::vector<T>& values, std::size_t most, const Each& each) {
    const auto count = static_cast<std::uint32_t>(std::min(values.size(), most));
    number(count);
    for (std::uint32_t i = 0; i < count; ++i)
      each(*this, values[i]);
    return true;
  }

  std::vector<std::byte> bytes;
};

/// Takes fields away; false once something is missing or too large.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left(bytes) {}

  template <class T>
  bool number(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (left.size() < sizeof value) return false;
    std::memcpy(&value, left.data(), sizeof value);
    left = left.subspan(sizeof value);
    return true;
  }
  bool text(std::string& value) {
    std::uint16_t length = 0;
    if (!number(length) || length > kMostText || left.size() < length) return false;
    value.assign(reinterpret_cast<const char*>(left.data()), length);
    left = left.subspan(length);
    return true;
  }
  bool blob(std::vector<std::byte>& value) {
    std::uint32_t length = 0;
    if (!number(length) || length > kMostBlob || left.size() < length) return false;
    value.assign(left.begin(), left.begin() + length);
    left = left.subspan(length);
    return true;
  }
  template <class T, class Each>
  bool list(std::vector<T>& values, std::size_t most, const Each& each) {
    std::uint32_t count = 0;
    if (!number(count) || count > most) return false;
    values.clear();
    // Grows with what is really there: a count alone reserves nothing.
    for (std::uint32_t i = 0; i < count; ++i) {
      if (!each(*this, values.emplace_back())) return false;
    }
    return true;
  }

  std::span<const std::byte> left;
};

// One list of fields per struct; `Io` is Writer (and T const) or Reader.

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, Address> {
  return io.text(m.ip) && io.number(m.port);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, Member> {
  return io.number(m.worker.bytes) && io.number(m.first_rank) && io.number(m.pid) &&
         io.text(m.host_name) && io.text(m.host_id) &&
         io.list(m.addresses, kMostAddresses, [](Io& to, auto& a) { return fields(to, a); }) &&
         io.text(m.unix_name) && io.number(m.local_rank) && io.number(m.local_size) &&
         io.number(m.cross_rank) && io.number(m.cross_size) && io.number(m.slot_bytes) &&
         io.number(m.window) && io.text(m.settings);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, Join> {
  return io.number(m.rank.value) && io.number(m.size) && io.number(m.wait_ms) &&
         fields(io, m.member);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, World> {
  return io.number(m.job) && io.number(m.epoch.value) && io.number(m.min_size) &&
         io.list(m.members, kMostMembers, [](Io& to, auto& a) { return fields(to, a); });
}

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, Welcome> {
  return fields(io, m.world);
}

/// A kind and a rank that may be absent (-1).
template <class Io, class Kind, class Peer>
bool kind_and_peer(Io& io, Kind& kind, Peer& peer, int kinds) {
  auto number = static_cast<std::uint8_t>(kind);
  std::int32_t rank = peer ? peer->value : -1;
  if (!io.number(number) || !io.number(rank) || number >= kinds) return false;
  if constexpr (std::is_same_v<Io, Reader>) {
    kind = static_cast<Kind>(number);
    if (rank >= 0) peer = Rank(rank);
  }
  return true;
}

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, Refuse> {
  constexpr int kKinds = static_cast<int>(ErrorKind::system) + 1;
  return kind_and_peer(io, m.error.kind, m.error.peer, kKinds) && io.text(m.error.message);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, Event> {
  constexpr int kKinds = static_cast<int>(ControlEvent::Kind::job_ended) + 1;
  return kind_and_peer(io, m.event.kind, m.event.peer, kKinds) && io.text(m.event.text);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, Report> {
  return io.text(m.text);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, Freeze> {
  return io.number(m.epoch.value) && io.text(m.text);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, Suspect> {
  return io.number(m.epoch.value) && io.number(m.about.value) && io.text(m.text);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, Positions> {
  return io.number(m.begin) && io.number(m.end);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, LaneCollective> {
  auto ending = static_cast<std::uint8_t>(m.ending);
  const auto each = [](Io& to, auto& rank) { return to.number(rank); };
  if (!fields(io, m.at) || !io.number(ending) || ending > static_cast<int>(Ending::shut)) {
    return false;
  }
  if constexpr (std::is_same_v<Io, Reader>) m.ending = static_cast<Ending>(ending);
  return io.list(m.group, kMostMembers, each) && io.blob(m.response);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, LaneReport> {
  return io.number(m.done) && io.number(m.started) && io.number(m.floor) &&
         io.list(m.collectives, kMostCollectives, [](Io& to, auto& c) { return fields(to, c); });
}

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, LanePlan> {
  return io.list(m.done, kMostMembers, [](Io& to, auto& count) { return to.number(count); }) &&
         io.number(m.next) && io.list(m.collectives, kMostCollectives, [](Io& to, auto& resolved) {
           return fields(to, resolved.collective) && fields(to, resolved.copy) &&
                  fields(to, resolved.redo);
         });
}

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, KeptAnswer> {
  return io.number(m.message) && io.blob(m.bytes);
}

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, Frozen> {
  return io.number(m.report.epoch.value) && io.number(m.report.window) &&
         io.number(m.report.heard) &&
         io.list(m.report.lanes, kMostLanes, [](Io& to, auto& lane) { return fields(to, lane); }) &&
         io.list(m.report.answers, kMostAnswers, [](Io& to, auto& a) { return fields(to, a); });
}

template <class Io, class T>
bool fields(Io& io, T& m) requires std::is_same_v<std::remove_const_t<T>, Install> {
  return fields(io, m.next.world) &&
         io.list(m.next.old_ranks, kMostMembers,
                 [](Io& to, auto& rank) { return to.number(rank); }) &&
         io.list(m.next.lanes, kMostLanes, [](Io& to, auto& lane) { return fields(to, lane); }) &&
         io.list(m.next.answers, kMostAnswers, [](Io& to, auto& a) { return fields(to, a); }) &&
         io.text(m.next.reason);
}

template <class Io, class T>
bool fields(Io&, T&) requires std::is_empty_v<T> {
  return true;
}

/// Reads the `index`-th alternative of Message.
template <std::size_t I = 0>
std::optional<Message> read_kind(std::size_t index, Reader& reader) {
  if constexpr (I < std::variant_size_v<Message>) {
    if (index != I) return read_kind<I + 1>(index, reader);
    std::variant_alternative_t<I, Message> message;
    if (fields(reader, message)) return message;
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  Writer writer;
  writer.number(std::uint32_t{0});
  writer.number(static_cast<std::uint8_t>(message.index()));
  std::visit([&writer](const auto& m) { fields(writer, m); }, message);
  const auto length = static_cast<std::uint32_t>(writer.bytes.size() - sizeof(std::uint32_t));
  std::memcpy(writer.bytes.data(), &length, sizeof length);
  return std::move(writer.bytes);
}

Result<Message> decode(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  std::uint8_t kind = 0;
  if (reader.number(kind)) {
    if (auto message = read_kind(kind, reader); message && reader.left.empty()) {
      return std::move(*message);
    }
  }
  return fail(ErrorKind::protocol, "malformed control message of kind " + std::to_string(kind) +
                                       ", " + std::to_string(bytes.size()) + " bytes");
}

void MessageReader::feed(std::span<const std::byte> bytes) {
  if (taken_ == bytes_.size()) {
    bytes_.clear();
    taken_ = 0;
  }
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<Message>> MessageReader::next() {
  const std::span<const std::byte> left = std::span<const std::byte>(bytes_).subspan(taken_);
  std::uint32_t length = 0;
  if (left.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, left.data(), sizeof length);
  if (length > max_message_) {
    return fail(ErrorKind::protocol, "a control message of " + std::to_string(length) + " bytes");
  }
  if (left.size() < sizeof length + length) return std::nullopt;
  auto message = decode(left.subspan(sizeof length, length));
  if (!message) return fail(message.error());
  taken_ += sizeof length + length;
  return std::optional<Message>(std::move(*message));
}

}  // namespace hora
