// Fifo: a queue in one circular buffer.
//
// It grows to its high-water mark and allocates no more after that, where a std::deque allocates
// and frees a block every few elements for ever. Its bound is its user's business.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "runtime/base/check.h"

namespace hora {

/// First in, first out. T is default-constructible and movable. Owner: whoever owns its parent.
template <class T>
class Fifo {
 public:
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t size() const { return size_; }
  /// The i-th from the front.
  T& operator[](std::size_t i) { return items_[(first_ + i) & (items_.size() - 1)]; }
  T& front() { return (*this)[0]; }

  void push(T item) {
    if (size_ == items_.size()) grow();
    ++size_;
    (*this)[size_ - 1] = std::move(item);
  }

  T pop() {
    HORA_CHECK(size_ > 0, "nothing to take from an empty queue");
    T item = std::exchange(front(), T{});
    first_ = (first_ + 1) & (items_.size() - 1);
    --size_;
    return item;
  }

 private:
  void grow() {
    std::vector<T> larger(items_.empty() ? 16 : 2 * items_.size());  // A power of two.
    for (std::size_t i = 0; i < size_; ++i)
      larger[i] = std::move((*this)[i]);
    items_ = std::move(larger);
    first_ = 0;
  }

  std::vector<T> items_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace hora
