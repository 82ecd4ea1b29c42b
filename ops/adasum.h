// Adasum: a sum of gradients that does not overshoot where they agree.
//
//   adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b
//
// Orthogonal gradients add, parallel ones average. Many are combined pairwise in a tree over the
// ranks: the left part has the largest power of two that is smaller than their number, so powers
// of two give the balanced tree and any other number works as well:
//
//   ranks 0 1 2 3 4 5     ((0 1) (2 3)) (4 5)
//
// Every node of the tree is a linear combination of the inputs, and what a combination needs are
// dot products of such combinations. So all of it follows from the *Gram matrix*, the dot products
// of the inputs with each other:
//
//   a = sum a_i x_i, b = sum b_j x_j    =>    a.b = sum a_i b_j G_ij,    |a|^2 = sum a_i a_j G_ij
//
// Two passes over the data for any number of ranks, whose elements can be shared out: sum up G,
// find one factor for each input, add the inputs with their factors. Everything is float64 and
// rounded to the element type once. A tensor is combined as a whole, never as a part of what it
// travels with.
//
// A vector whose norm is nothing (less than the square root of the smallest double, or lost in the
// rounding of its own terms) has no direction: its factor, like its partner's dot product, stays
// out of it and it is added as it is.
//
// Source: Maleki et al., "Scaling distributed training with adaptive summation", 2020.
//
// As a collective it is three runs of one lane (`make_adasum_runs`). Rank r has block r of the
// tensor to itself:
//
//   all-to-all   everybody's block r to rank r     then rank r: its part of the Gram matrix
//   all-reduce   the Gram matrix, n^2 doubles      then rank r: the factors; block r combined
//   all-gather   the combined blocks
//
// So a rank sends and receives 2 (n-1)/n of the tensor, the least possible, does 1/n of the
// arithmetic, and needs memory for one more tensor. All ranks get the blocks from their owners,
// hence the same bytes.
//
// Threads: pure functions and values. The arithmetic never allocates, but for adasum_factors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/collective.h"
#include "runtime/base/dtype.h"

namespace hora {

/// Elements of one input that a call below takes at most: what is widened stays in cache.
inline constexpr std::size_t kAdasumBlock = 1024;

/// gram[i * n + j] += dot(inputs[i], inputs[j]) for i <= j, of the first `count` <= kAdasumBlock
/// elements; n inputs of a floating-point type. `scratch` has room for n * kAdasumBlock doubles.
void add_to_gram(DType dtype, std::span<const std::byte* const> inputs, std::size_t count,
                 std::span<double> scratch, std::span<double> gram);

/// The factor of each of n inputs, from the upper triangle of their Gram matrix.
std::vector<double> adasum_factors(std::span<const double> gram, std::size_t n);

/// out[k] = round(postscale * sum over i of factors[i] * inputs[i][k]), `count` <= kAdasumBlock
/// elements. Summed in the order of the inputs; 16-bit types are rounded by way of float32. `out`
/// may be one of the inputs.
void adasum_combine(DType dtype, std::span<const std::byte* const> inputs,
                    std::span<const double> factors, double postscale, std::byte* out,
                    std::size_t count);

/// The tensor of one rank.
struct AdasumTensor {
  DType dtype = DType::float32;      ///< Floating point.
  std::uint64_t count = 0;           ///< Elements, the same on all ranks; at least one.
  const std::byte* input = nullptr;  ///< Null: zeros. Read by the first run only.
  std::byte* output = nullptr;       ///< Null: not wanted. Written by the last run only.
  double prescale = 1.0;             ///< Of each element, rounded.
  double postscale = 1.0;            ///< Of each sum, before it is rounded.
};

/// The three runs, for the rank at index `me` of a group of `size`; without schedules, segments and
/// tickets. `me` < 0: it is not in the group and only passes their positions. All null: there is
/// no memory for them.
std::array<std::unique_ptr<CollectiveRun>, 3> make_adasum_runs(const AdasumTensor& tensor, int size,
                                                               int me);

}  // namespace hora
