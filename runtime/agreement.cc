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

std::string tensor_text(const Request& request) {
  return std::string(to_string(request.dtype)) + shape_text(request.shape);
}

std::string op_text(const Request& request) {
  return std::string(to_string(request.op));
}

std::string kind_text(const Request& request) {
  const std::string kind(to_string(request.kind));
  return request.kind == Kind::barrier ? kind : kind + " " + tensor_text(request);
}

std::string scale_text(const Request& request) {
  return "prescale " + number_text(request.prescale) + ", postscale " +
         number_text(request.postscale);
}

std::string root_text(const Request& request) {
  return "root rank " + std::to_string(request.root);
}

/// " (tensor 'x': ranks 0,1 submitted A, rank 2 submitted B)"
std::string who_text(std::span<const Request> by_rank, const Describe& describe) {
  std::vector<std::pair<std::string, std::vector<std::int32_t>>> groups;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const std::string text = describe(by_rank[rank]);
    auto group = groups.begin();
    while (group != groups.end() && group->first != text)
      ++group;
    if (group == groups.end()) group = groups.insert(groups.end(), {text, {}});
    group->second.push_back(static_cast<std::int32_t>(rank));
  }
  std::string text = " (tensor '" + name_text(by_rank.front().name) + "': ";
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

std::optional<Difference> difference(const Request& a, const Request& b) {
  if (a.kind != b.kind) {
    return Difference{"Mismatched operations: One rank did an " + std::string(to_string(a.kind)) +
                          ", but another rank did an " + std::string(to_string(b.kind)) + ".",
                      kind_text};
  }
  if (a.kind == Kind::barrier) return std::nullopt;
  if (a.dtype != b.dtype) {
    return Difference{"Mismatched data types: One rank had type " +
                          std::string(to_string(a.dtype)) + ", but another rank had type " +
                          std::string(to_string(b.dtype)) + ".",
                      tensor_text};
  }
  if (reduces(a.kind) && a.op != b.op) {
    return Difference{"Mismatched reduction operation: One rank requested " + op_text(a) +
                          ", but another rank requested " + op_text(b) + ".",
                      op_text};
  }
  if (auto shapes = shapes_differ(a, b)) return Difference{std::move(*shapes), tensor_text};
  if (reduces(a.kind) && !same_scales(a, b)) {
    return Difference{"Mismatched prescale and/or postscale factors: One rank sent " +
                          scale_text(a) + ", but another rank sent " + scale_text(b) + ".",
                      scale_text};
  }
  if (a.kind == Kind::broadcast && a.root != b.root) {
    return Difference{"Mismatched BROADCAST root ranks: One rank specified " + root_text(a) +
                          ", but another rank specified " + root_text(b) + ".",
                      root_text};
  }
  return std::nullopt;
}

}  // namespace

std::string ranks_text(const std::vector<std::int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1)
      ++end;
    if (end - i < 3) end = i + 1;  // "0,1", but "0-2"
    if (i > 0) text += ",";
    text += std::to_string(ranks[i]);
    if (end - i >= 3) text += "-" + std::to_string(ranks[end - 1]);
    i = end;
  }
  return text;
}

std::optional<Error> find_fault(const Request& request, int size) {
  const auto who = [&] { return " (tensor '" + name_text(request.name) + "', on all ranks)"; };
  if (request.kind == Kind::allgather && request.shape.empty()) {
    return mismatch("Rank zero tried to ALLGATHER a rank-zero tensor." + who());
  }
  if (request.kind == Kind::broadcast && (request.root < 0 || request.root >= size)) {
    return Error{ErrorKind::invalid_argument,
                 "broadcast received invalid root rank " + std::to_string(request.root) +
                     ": ranks are 0 to " + std::to_string(size - 1) + "." + who(),
                 std::nullopt};
  }
  return std::nullopt;
}

std::optional<Error> find_disagreement(std::span<const Request> by_rank) {
  for (const Request& other : by_rank) {
    if (auto found = difference(by_rank.front(), other)) {
      return mismatch(found->sentence + who_text(by_rank, found->describe));
    }
  }
  return std::nullopt;
}

}  // namespace hora
