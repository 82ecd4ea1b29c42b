#include "runtime/agreement.h"

#include <bit>
#include <cstdio>
#include <functional>
#include <utility>

namespace hora {
namespace {

/// Text of one aspect of a request.
using Describe = std::function<std::string(const Request&)>;

std::string number_text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

std::string type_text(const Request& request) {
  return std::string(to_string(request.dtype)) + shape_text(request.shape);
}

std::string op_text(const Request& request) {
  return std::string(to_string(request.op));
}

std::string members_text(const Request& request) {
  std::string text = "[";
  for (const std::int32_t rank : request.members)
    text += (text.size() > 1 ? ", " : "") + std::to_string(rank);
  return text + "]";
}

std::string kind_text(const Request& request) {
  std::string kind(to_string(request.kind));
  switch (request.kind) {
    case Kind::barrier:
    case Kind::join:
      return kind;
    case Kind::add_set:
      return kind + " " + members_text(request);
    case Kind::remove_set:
      return kind + " " + std::to_string(request.set.value);
    default:
      return kind + " " + type_text(request);
  }
}

std::string scale_text(const Request& request) {
  return "prescale " + number_text(request.prescale) + ", postscale " +
         number_text(request.postscale);
}

std::string group_text(const Request& request) {
  if (request.group.empty()) return "it alone";
  return "it in group '" + name_text(request.group) + "' of " + std::to_string(request.group_size);
}

std::string codec_text(const Request& request) {
  return request.codec.empty() ? "no codec" : "codec '" + printable(request.codec) + "'";
}

std::string root_text(const Request& request) {
  return "root rank " + std::to_string(request.root);
}

/// " (tensor 'x': ranks 0,1 submitted A, rank 2 submitted B)"
std::string who_text(std::span<const Submitted> by_rank, const Describe& describe) {
  std::vector<std::pair<std::string, std::vector<std::int32_t>>> groups;
  for (const Submitted& submitted : by_rank) {
    const std::string text = describe(submitted.request);
    auto group = groups.begin();
    while (group != groups.end() && group->first != text)
      ++group;
    if (group == groups.end()) group = groups.insert(groups.end(), {text, {}});
    group->second.push_back(submitted.rank);
  }
  const Request& first = by_rank.front().request;
  std::string text =
      is_collective(first.kind) ? " (" + tensor_text(first.name, first.set) + ": " : " (";
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (i > 0) text += ", ";
    text += ranks_text(groups[i].second) + " submitted " + groups[i].first;
  }
  return text + ")";
}

std::optional<Error> mismatch(std::string text) {
  return Error{ErrorKind::mismatch, std::move(text), std::nullopt};
}

/// Shapes must be the same, but for first dimensions that are the ranks' own.
std::optional<std::string> shapes_differ(const Request& a, const Request& b) {
  const std::string head = "Mismatched " + std::string(to_string(a.kind)) + " tensor shapes: ";
  if (own_dims(a.kind, 1) == 0) {
    if (a.shape == b.shape) return std::nullopt;
    return head + "One rank sent a tensor of shape " + shape_text(a.shape) +
           ", but another rank sent a tensor of shape " + shape_text(b.shape) + ".";
  }
  if (a.shape.size() != b.shape.size()) {
    return head + "One rank sent a tensor of rank " + std::to_string(a.shape.size()) +
           ", but another rank sent a tensor of rank " + std::to_string(b.shape.size()) + ".";
  }
  for (std::size_t i = 1; i < a.shape.size(); ++i) {
    if (a.shape[i] == b.shape[i]) continue;
    const std::string dimension = "dimension " + std::to_string(i) + " equal to ";
    return head + "One rank sent a tensor with " + dimension + std::to_string(a.shape[i]) +
           ", but another rank sent a tensor with " + dimension + std::to_string(b.shape[i]) + ".";
  }
  return std::nullopt;
}

bool same_scales(const Request& a, const Request& b) {
  const auto bits = [](double number) { return std::bit_cast<std::uint64_t>(number); };
  return bits(a.prescale) == bits(b.prescale) && bits(a.postscale) == bits(b.postscale);
}

/// Why a and b cannot be one collective: Horovod's sentence, and the aspect to show of each rank.
struct Difference {
  std::string sentence;
  Describe describe;
};

std::optional<Difference> sets_differ(const Request& a, const Request& b) {
  if (a.members == b.members && a.set == b.set) return std::nullopt;
  const auto what = a.kind == Kind::add_set ? "add " : "remove ";
  const auto subject = [](const Request& request) {
    return request.kind == Kind::add_set ? members_text(request)
                                         : std::to_string(request.set.value);
  };
  return Difference{"Mismatched process sets: One rank wants to " + std::string(what) + subject(a) +
                        ", but another rank wants to " + what + subject(b) + ".",
                    subject};
}

std::optional<Difference> difference(const Request& a, const Request& b) {
  if (a.kind != b.kind) {
    return Difference{"Mismatched operations: One rank did an " + std::string(to_string(a.kind)) +
                          ", but another rank did an " + std::string(to_string(b.kind)) + ".",
                      kind_text};
  }
  if (a.kind == Kind::barrier) return std::nullopt;
  if (!is_collective(a.kind)) return sets_differ(a, b);
  if (a.dtype != b.dtype) {
    return Difference{"Mismatched data types: One rank had type " +
                          std::string(to_string(a.dtype)) + ", but another rank had type " +
                          std::string(to_string(b.dtype)) + ".",
                      type_text};
  }
  if (reduces(a.kind) && a.op != b.op) {
    return Difference{"Mismatched reduction operation: One rank requested " + op_text(a) +
                          ", but another rank requested " + op_text(b) + ".",
                      op_text};
  }
  if (auto shapes = shapes_differ(a, b)) return Difference{std::move(*shapes), type_text};
  if (reduces(a.kind) && !same_scales(a, b)) {
    return Difference{"Mismatched prescale and/or postscale factors: One rank sent " +
                          scale_text(a) + ", but another rank sent " + scale_text(b) + ".",
                      scale_text};
  }
  if (a.kind == Kind::allreduce && a.codec != b.codec) {
    return Difference{"Mismatched compression: One rank sent with " + codec_text(a) +
                          ", but another rank sent with " + codec_text(b) + ".",
                      codec_text};
  }
  if (a.kind == Kind::broadcast && a.root != b.root) {
    return Difference{"Mismatched BROADCAST root ranks: One rank specified " + root_text(a) +
                          ", but another rank specified " + root_text(b) + ".",
                      root_text};
  }
  if (a.group != b.group || a.group_size != b.group_size) {
    return Difference{"Mismatched groups: One rank submitted " + group_text(a) +
                          ", but another rank submitted " + group_text(b) + ".",
                      group_text};
  }
  return std::nullopt;
}

/// What to tell the others of ranks whose calls have failed before they began.
Error refused(const Request& first, const std::vector<std::int32_t>& ranks) {
  std::string text = title_of(first.kind) + ": the call of " + ranks_text(ranks) + " for " +
                     tensor_text(first.name, first.set) + " has failed";
  if (ranks.size() > 1) text += ", the first of them";
  return Error{ErrorKind::mismatch, text + " with: " + first.refusal, std::nullopt};
}

}  // namespace

std::optional<Error> find_fault(const Request& request, const ProcessSet& set) {
  const auto who = [&] {
    return " (" + tensor_text(request.name, request.set) + ", on all ranks)";
  };
  if (!request.refusal.empty()) return refused(request, set.ranks);
  if (request.kind == Kind::allgather && request.shape.empty()) {
    return mismatch("Rank zero tried to ALLGATHER a rank-zero tensor." + who());
  }
  if (request.kind == Kind::broadcast && !set.includes(Rank(request.root))) {
    return Error{ErrorKind::invalid_argument,
                 "broadcast received invalid root rank " + std::to_string(request.root) +
                     " for provided process set: it has " + ranks_text(set.ranks) + "." + who(),
                 std::nullopt};
  }
  return std::nullopt;
}

std::optional<Error> find_join_fault(const Request& request,
                                     const std::vector<std::int32_t>& absent) {
  // A joined rank gives zeros to a sum and can meet the others. Nothing else can do without what
  // it alone has.
  if (request.kind == Kind::allreduce || request.kind == Kind::barrier) return std::nullopt;
  std::string text = title_of(request.kind) + " is not supported with Join at this time.";
  if (request.kind == Kind::allgather) {
    text += " Specify sparse_to_dense=True if using DistributedOptimizer";
  }
  const std::string what =
      is_collective(request.kind) ? tensor_text(request.name, request.set) + ": " : "";
  return mismatch(text + " (" + what + ranks_text(absent) +
                  (absent.size() == 1 ? " has joined)" : " have joined)"));
}

std::optional<Error> find_disagreement(std::span<const Submitted> by_rank) {
  const Request* first = nullptr;
  std::vector<std::int32_t> refusing;
  for (const Submitted& submitted : by_rank) {
    if (submitted.request.refusal.empty()) continue;
    if (first == nullptr) first = &submitted.request;
    refusing.push_back(submitted.rank);
  }
  if (first != nullptr) return refused(*first, refusing);
  for (const Submitted& other : by_rank) {
    if (auto found = difference(by_rank.front().request, other.request)) {
      return mismatch(found->sentence + who_text(by_rank, found->describe));
    }
  }
  return std::nullopt;
}

}  // namespace hora
