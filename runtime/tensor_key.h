// TensorKey: what tells two tensors in flight apart.
//
// A name is unique within a process set; the same name may be in flight in two sets at once. A key
// is a view: the request that owns the name outlives every table that has the key.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

#include "runtime/request.h"

namespace hora {

struct TensorKey {
  SetId set;
  std::string_view name;

  friend bool operator==(const TensorKey&, const TensorKey&) = default;
};

inline TensorKey key_of(const Request& request) {
  return {members_of(request), request.name};
}

struct TensorKeyHash {
  std::size_t operator()(const TensorKey& key) const noexcept {
    return std::hash<std::string_view>{}(key.name) ^ (key.set.value * 0x9e3779b97f4a7c15u);
  }
};

}  // namespace hora
