// How the rendezvous says what the edge shall do: one line per action.
//
// Internal to elastic/rendezvous*.cc.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "elastic/rendezvous.h"

namespace hora::rendezvous {

using Bytes = std::shared_ptr<const std::vector<std::byte>>;

inline Bytes encoded(const Message& message) {
  return std::make_shared<const std::vector<std::byte>>(encode(message));
}

inline void send(ConnectionId to, Bytes bytes, Rendezvous::Actions& out) {
  out.push_back({RendezvousAction::Kind::send, to, Rank(-1), "", std::move(bytes)});
}

inline void close(ConnectionId connection, Rendezvous::Actions& out) {
  out.push_back({RendezvousAction::Kind::close, connection, Rank(-1), "", nullptr});
}

inline void refuse(ConnectionId connection, const Error& error, Rendezvous::Actions& out) {
  send(connection, encoded(Refuse{error}), out);
  close(connection, out);
}

inline void tell_owner(RendezvousAction::Kind kind, Rank rank, std::string text,
                       Rendezvous::Actions& out) {
  out.push_back({kind, 0, rank, std::move(text), nullptr});
}

}  // namespace hora::rendezvous
