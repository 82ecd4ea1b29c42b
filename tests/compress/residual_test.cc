// The residual store: what a transaction leaves, whatever is fused with what.
#include "compress/residual.h"

#include <random>

#include <catch2/catch.hpp>

namespace hora {
namespace {

TEST_CASE("residual: zeros at first, the shadow's elements after commit, as before after abort") {
  ResidualStore store;
  Residual& a = store.open("a", 10);
  CHECK(a.values == std::vector<float>(10, 0.0F));

  auto shadow = store.begin(8);
  for (int i = 0; i < 8; ++i)
    shadow->data()[i] = static_cast<float>(i + 1);
  shadow->add(a, 2, 3, 4);
  CHECK(a.values == std::vector<float>(10, 0.0F));  // Not yet.
  store.commit(std::move(shadow));
  CHECK(a.values == std::vector<float>{0, 0, 5, 6, 7, 0, 0, 0, 0, 0});

  shadow = store.begin(10);
  shadow->add(a, 0, 10, 0);
  for (int i = 0; i < 10; ++i)
    shadow->data()[i] = -1;
  store.abort(std::move(shadow));
  CHECK(a.values == std::vector<float>{0, 0, 5, 6, 7, 0, 0, 0, 0, 0});
}

TEST_CASE("residual: a tensor is found again under its name, until its size changes") {
  ResidualStore store;
  Residual& a = store.open("a", 2);
  a.values = {3, 4};
  CHECK(&store.open("a", 2) == &a);
  CHECK(store.find("a") == &a);
  CHECK(store.find("b") == nullptr);
  CHECK(store.norm() == Approx(5));
  CHECK(store.take_dropped_norm() == 0);

  CHECK(store.open("a", 3).values == std::vector<float>(3, 0.0F));
  CHECK(store.take_dropped_norm() == Approx(5));
  CHECK(store.take_dropped_norm() == 0);
}

TEST_CASE("residual: any interleaving of segments leaves each element its last committed value") {
  // Three tensors as one row of 60 elements, cut anew in every round: segments span tensors.
  const std::vector<std::size_t> sizes = {7, 40, 13};
  const std::vector<std::string> names = {"a", "b", "c"};
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    ResidualStore store;
    std::vector<float> expected(60, 0.0F);
    float next = 1;
    for (int round = 0; round < 20; ++round) {
      struct Open {
        std::size_t first = 0, count = 0;
        float value = 0;
        std::unique_ptr<Shadow> shadow;
      };
      std::vector<Open> open;
      for (std::size_t first = 0; first < 60;) {
        const std::size_t count = std::min<std::size_t>(60 - first, 1 + random() % 30);
        Open segment{first, count, next++, store.begin(count)};
        std::size_t start = 0;
        for (std::size_t t = 0; t < names.size(); ++t) {
          Residual& tensor = store.open(names[t], sizes[t]);
          const std::size_t from = std::max(start, first);
          const std::size_t to = std::min(start + sizes[t], first + count);
          if (from < to) segment.shadow->add(tensor, from - start, to - from, from - first);
          start += sizes[t];
        }
        std::fill_n(segment.shadow->data(), count, segment.value);
        open.push_back(std::move(segment));
        first += count;
      }
      std::shuffle(open.begin(), open.end(), random);
      for (Open& segment : open) {
        if (random() % 3 == 0) {
          store.abort(std::move(segment.shadow));
          continue;
        }
        store.commit(std::move(segment.shadow));
        std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(segment.first), segment.count,
                    segment.value);
      }
    }
    std::vector<float> found;
    for (const std::string& name : names) {
      const Residual* tensor = store.find(name);
      REQUIRE(tensor != nullptr);
      found.insert(found.end(), tensor->values.begin(), tensor->values.end());
    }
    REQUIRE(found == expected);
  }
}

}  // namespace
}  // namespace hora
