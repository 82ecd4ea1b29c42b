// ResidualStore: what error feedback keeps, by tensor and element.
//
// An encoder loses something; with error feedback it is added to the next gradient instead. What
// every rank keeps belongs to (tensor name, element), so it survives any change of fusion, of
// segments, of codec, and of the number of ranks: it is in units of this rank's own contribution
// to the sum, and nobody else has a part of it.
//
// It changes by transactions, one per segment in flight:
//
//   begin    a Shadow for the segment's elements; encoders read the residual and write the shadow
//   commit   the segment is done here: the shadow's elements become the residual
//   abort    the segment will not be finished, or is done anew: the shadow is forgotten
//
//   residual of 'fc1'   [ ......|=====|........ ]     shadow of a segment   [ .. | new fc1 | .. ]
//                               ^-- commit copies ---------------------------------'
//
// So at any moment each element's residual is as if the segment had not begun, or had finished. A
// residual that would be NaN or infinite is not committed but aborted: the caller says so, when it
// sees that the result is not finite; all ranks see the same result.
//
// A copy per commit instead of two buffers whose roles change: the shadow is in cache, and of
// shadows there are only as many as segments in flight.
//
// Memory: 4 bytes per element that ever had error feedback. Owner: the progress token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace hora {

/// What is kept of one tensor.
struct Residual {
  std::vector<float> values;
};

/// The next residual of the elements of one segment.
class Shadow {
 public:
  /// Elements [first, first + count) of a tensor stand at `offset` here.
  void add(Residual& tensor, std::size_t first, std::size_t count, std::size_t offset) {
    parts_.push_back({&tensor, first, count, offset});
  }
  [[nodiscard]] float* data() { return values_.data(); }

 private:
  friend class ResidualStore;
  struct Part {
    Residual* tensor = nullptr;
    std::size_t first = 0, count = 0, offset = 0;
  };
  std::vector<float> values_;
  std::vector<Part> parts_;
};

class ResidualStore {
 public:
  /// The residual of a tensor of `count` elements: zeros at first. If the name had another number
  /// of elements, it is another tensor now: what was kept is dropped, and its norm added to
  /// `dropped_norm`. The reference is good for the life of the store; no shadow may be open on a
  /// tensor whose size changes.
  Residual& open(std::string_view name, std::size_t count);

  /// A shadow of `elements` elements, undefined until written.
  [[nodiscard]] std::unique_ptr<Shadow> begin(std::size_t elements);
  /// Every element of the shadow's parts has been written, and is finite.
  void commit(std::unique_ptr<Shadow> shadow);
  void abort(std::unique_ptr<Shadow> shadow);

  /// The residual of this name, or null.
  [[nodiscard]] const Residual* find(std::string_view name) const;
  /// Euclidean norm of all that is kept.
  [[nodiscard]] double norm() const;
  /// Norm of what open() had to drop since the last call.
  double take_dropped_norm();

 private:
  std::unordered_map<std::string, std::unique_ptr<Residual>> tensors_;
  std::vector<std::unique_ptr<Shadow>> idle_;  // Their memory is used again.
  double dropped_norm_ = 0;
};

}  // namespace hora
