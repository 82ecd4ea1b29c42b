#include "compress/residual.h"

#include <cmath>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/float_arrays.h"

namespace hora {
namespace {

double square_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values)
    sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

}  // namespace

Residual& ResidualStore::open(std::string_view name, std::size_t count) {
  auto& tensor = tensors_[std::string(name)];
  if (!tensor) tensor = std::make_unique<Residual>();
  if (tensor->values.size() != count) {
    dropped_norm_ = std::hypot(dropped_norm_, std::sqrt(square_of(tensor->values)));
    tensor->values.assign(count, 0.0F);
  }
  return *tensor;
}

std::unique_ptr<Shadow> ResidualStore::begin(std::size_t elements) {
  if (idle_.empty()) idle_.push_back(std::make_unique<Shadow>());
  std::unique_ptr<Shadow> shadow = std::move(idle_.back());
  idle_.pop_back();
  if (shadow->values_.size() < elements) shadow->values_.resize(elements);
  shadow->parts_.clear();
  return shadow;
}

void ResidualStore::commit(std::unique_ptr<Shadow> shadow) {
  for (const Shadow::Part& part : shadow->parts_) {
    HORA_CHECK(part.first + part.count <= part.tensor->values.size() &&
                   part.offset + part.count <= shadow->values_.size(),
               "a shadow stands for elements that there are");
    copy_floats(shadow->values_.data() + part.offset, part.tensor->values.data() + part.first,
                part.count);
  }
  abort(std::move(shadow));
}

void ResidualStore::abort(std::unique_ptr<Shadow> shadow) {
  idle_.push_back(std::move(shadow));
}

const Residual* ResidualStore::find(std::string_view name) const {
  const auto found = tensors_.find(std::string(name));
  return found == tensors_.end() ? nullptr : found->second.get();
}

double ResidualStore::norm() const {
  double sum = 0;
  for (const auto& [name, tensor] : tensors_)
    sum += square_of(tensor->values);
  return std::sqrt(sum);
}

double ResidualStore::take_dropped_norm() {
  return std::exchange(dropped_norm_, 0.0);
}

}  // namespace hora
