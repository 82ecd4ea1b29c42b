// KeptResponse: a response as it is kept while somebody may lack a part of its result.
//
// When a World ends, the next one has to know what was in flight, and not every member has got
// every response. So each reports those it knows, as bytes that only engines read. Ranks change
// with the World; here members are named by the ranks with which they were started, so that the
// bytes of one collective are the same from all members and stay right in later Worlds.
#pragma once

#include <cstdint>
#include <vector>

#include "elastic/resolution.h"
#include "runtime/base/result.h"
#include "runtime/request.h"

namespace hora {

struct KeptResponse {
  Response response;                ///< `root` is a first rank.
  std::uint64_t segment_bytes = 0;  ///< A redone collective keeps its segments.
  std::vector<std::int32_t> ranks;  ///< First ranks of those whose first dimensions it has.
  bool failed = false;              ///< Its calls have failed: only its positions are left.
};

/// How a collective may be finished in another World. Of one that has failed nobody has results.
Ending ending_of(const KeptResponse& kept);

std::vector<std::byte> encode(const KeptResponse& kept);
/// Error protocol.
Result<KeptResponse> decode_kept(std::span<const std::byte> bytes);

/// The response for the members that are left, for one that restarts whole: first dimensions of the
/// others are gone.
Response without_lost(const KeptResponse& kept, const std::vector<std::int32_t>& members);

}  // namespace hora
