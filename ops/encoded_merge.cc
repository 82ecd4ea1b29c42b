#include "ops/encoded_merge.h"

#include <algorithm>
#include <array>

#include "runtime/base/float_arrays.h"

namespace hora {
namespace {

const std::byte* bytes_of(const float* floats) {
  return reinterpret_cast<const std::byte*>(floats);
}
std::byte* bytes_of(float* floats) {
  return reinterpret_cast<std::byte*>(floats);
}

/// Elements that are merged together.
std::size_t stretch_of(const Codec& codec, std::size_t count) {
  return std::min(count, codec.traits().kind == CodecKind::gather ? kGatherStretch : kCodecStretch);
}

/// Floats that are to be added to each other: few at a time, in order.
class Addends {
 public:
  explicit Addends(float* sum) : sum_(sum) {}

  [[nodiscard]] bool empty() const { return used_ == 0; }
  void add(const float* floats) { floats_[used_++] = bytes_of(floats); }
  /// Adds up what there is, so that the sum is all there is.
  void add_up(std::size_t count, const Finish& finish) {
    if (used_ == 1 && floats_[0] == bytes_of(sum_) && finish.is_identity()) return;
    reduce(DType::float32, ReduceOp::sum, std::span(floats_).first(used_), bytes_of(sum_), count,
           finish);
    floats_[0] = bytes_of(sum_);
    used_ = 1;
  }

 private:
  float* sum_;
  std::array<const std::byte*, 4> floats_{};  // The sum so far, a source, a residual.
  std::size_t used_ = 0;
};

}  // namespace

const float* EncodedMerge::source_floats(const EncodedRecipe& recipe, const EncodedRun& run,
                                         std::size_t first, std::size_t count) {
  if (run.source == nullptr) {
    source_.assign(std::max(source_.size(), count), 0.0F);
    return source_.data();
  }
  const std::byte* const from = run.source + first * size_of(recipe.dtype);
  if (recipe.dtype == DType::float32 && recipe.prescale == 1.0) {
    return reinterpret_cast<const float*>(from);
  }
  if (source_.size() < count) source_.resize(count);
  widen(recipe.dtype, from, source_.data(), count);
  scale(DType::float32, bytes_of(source_.data()), bytes_of(source_.data()), count, recipe.prescale);
  return source_.data();
}

bool EncodedMerge::add(const EncodedRecipe& recipe, std::span<EncodedOperand> operands,
                       const EncodedRun& run, std::size_t first, std::size_t count, float* sum,
                       std::size_t& malformed) {
  Addends addends(sum);
  for (std::size_t k = 0; k < operands.size(); ++k) {
    EncodedOperand& operand = operands[k];
    if (!operand.encoded) {
      addends.add(source_floats(recipe, run, first, count));
      continue;
    }
    const bool is_first = addends.empty();
    if (!is_first) addends.add_up(count, Finish{});
    const auto read = is_first ? recipe.codec->decode(operand.payload, count, sum)
                               : recipe.codec->decode_add(operand.payload, count, sum);
    if (!read) {
      malformed = k;
      return false;
    }
    operand.payload = operand.payload.subspan(*read);
    if (is_first) addends.add(sum);
  }
  if (run.residual != nullptr) addends.add(run.residual + first);
  addends.add_up(count, recipe.finish);
  return true;
}

std::optional<std::size_t> EncodedMerge::encode(const EncodedRecipe& recipe,
                                                std::span<EncodedOperand> operands,
                                                const EncodedRun& run, std::byte* payload,
                                                std::size_t& malformed) {
  const std::size_t stretch = stretch_of(*recipe.codec, run.count);
  if (run.shadow == nullptr && sum_.size() < stretch) sum_.resize(stretch);
  std::size_t used = 0;
  for (std::size_t first = 0; first < run.count; first += stretch) {
    const std::size_t count = std::min(stretch, run.count - first);
    float* const error = run.shadow == nullptr ? nullptr : run.shadow + first;
    float* const sum = error == nullptr ? sum_.data() : error;
    if (!add(recipe, operands, run, first, count, sum, malformed)) return std::nullopt;
    used += recipe.codec->encode(sum, count, payload + used, error);
    if (error == nullptr) continue;
    if (!recipe.finish.is_identity()) {
      scale(DType::float32, bytes_of(error), bytes_of(error), count,
            static_cast<double>(recipe.finish.divisor) / recipe.finish.postscale);
    }
    overflow_ = overflow_ || !all_finite(error, count);
  }
  return used;
}

bool EncodedMerge::decode(const EncodedRecipe& recipe, std::span<EncodedOperand> operands,
                          std::size_t count, float* out, std::size_t& malformed) {
  const std::size_t stretch = stretch_of(*recipe.codec, count);
  for (std::size_t first = 0; first < count; first += stretch) {
    const std::size_t part = std::min(stretch, count - first);
    if (!add(recipe, operands, EncodedRun{}, first, part, out + first, malformed)) return false;
    // Which NaN a sum of NaNs is depends on the processor; a reduction leaves the one NaN.
    const std::array<const std::byte*, 1> sum{bytes_of(out + first)};
    if (recipe.finish.is_identity()) {
      reduce(DType::float32, ReduceOp::sum, sum, bytes_of(out + first), part, Finish{});
    }
  }
  return true;
}

}  // namespace hora
