// Sharing: how the members come to one Topology. Pure; the engine carries the messages.
//
//   every rank -> root   vote: one bit per rank, "this link shares memory"
//   root -> every rank   verdict: for each rank the number of its host
//
// It must be agreed on, because templates of all ranks must match, and nobody can know it alone: of
// two ranks with equal host ids a memfd may still have failed to pass, and a third rank sees only
// its own links. Both messages are checked like anything that comes from a peer.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "ops/topology.h"

namespace hora {

/// `shares` by rank; the own entry counts as true.
std::vector<std::byte> encode_vote(const std::vector<bool>& shares);
/// Nothing if these are not the bytes of a vote of one of `size` ranks.
std::optional<std::vector<bool>> decode_vote(std::span<const std::byte> message, int size);

std::vector<std::byte> encode_verdict(const Topology& topology);
/// Nothing if these are not the bytes of a verdict about `size` ranks.
std::optional<Topology> decode_verdict(std::span<const std::byte> message, int size);

}  // namespace hora
