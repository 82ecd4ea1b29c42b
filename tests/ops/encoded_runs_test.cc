// Runs with codecs over every algorithm and transport: all ranks end with the same bits, near the
// sum; error feedback keeps what is lost; what is cut short leaves no trace.
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <map>

#include "ops/encoded_segment.h"
#include "runtime/base/float_arrays.h"
#include "tests/support/rank_set.h"

namespace hora::test {
namespace {

using SharedCodec = std::shared_ptr<const Codec>;

SharedCodec codec_of(std::string_view text) {
  auto made = make_codec(text);
  REQUIRE(made);
  return *made;
}

/// The codecs that a schedule runs, with and without error feedback.
std::vector<std::string> codec_texts() {
  std::vector<std::string> texts;
  for (const CodecRow& row : codecs()) {
    std::string text(row.name);
    if (codec_of(text)->traits().kind == CodecKind::summed) continue;
    texts.push_back(text);
    texts.push_back(text + "+ef");
  }
  return texts;
}

std::vector<const AlgorithmRow*> rows_for(const Codec& codec) {
  std::vector<const AlgorithmRow*> rows;
  for (const AlgorithmRow& row : algorithms()) {
    const bool takes = codec.traits().kind == CodecKind::gather ? row.gathers : true;
    if (row.make_encoded != nullptr && takes) rows.push_back(&row);
  }
  return rows;
}

float value_of(int rank, std::size_t i, int step = 0) {
  const auto mixed = static_cast<std::uint32_t>(i * 2654435761u + rank * 40503u + step * 69621u);
  return static_cast<float>(static_cast<int>(mixed >> 8 & 0xffff) - 0x8000) / 4096.0F;
}

/// A tensor of every rank, in memory of its own.
struct Tensor {
  std::string name;
  std::size_t count = 0;
  std::vector<std::vector<std::byte>> input, output;  // By rank.
};

/// Tensors in a run, of float32 or another type; what all ranks keep between runs.
class Job {
 public:
  Job(RankSetOptions options, std::string codec, const AlgorithmRow& row,
      DType dtype = DType::float32)
      : codec_(codec_of(codec)), row_(row), dtype_(dtype), options_(options) {
    stores_.resize(static_cast<std::size_t>(options.size));
    restart();
  }

  void restart() { ranks_ = std::make_unique<RankSet>(options_); }
  RankSet& ranks() { return *ranks_; }
  std::vector<Tensor> tensors;
  ReduceOp op = ReduceOp::sum;
  double prescale = 1.0, postscale = 1.0;

  void add(const std::string& name, std::size_t count) {
    Tensor tensor{name, count, {}, {}};
    const std::size_t bytes = count * size_of(dtype_);
    tensor.input.assign(stores_.size(), std::vector<std::byte>(bytes));
    tensor.output.assign(stores_.size(), std::vector<std::byte>(bytes, std::byte{0x55}));
    tensors.push_back(std::move(tensor));
  }
  void fill(int step) {
    for (Tensor& tensor : tensors) {
      for (std::size_t r = 0; r < stores_.size(); ++r) {
        for (std::size_t i = 0; i < tensor.count; ++i)
          put(tensor.input[r], i, value_of(static_cast<int>(r), i + 31 * tensor.name.size(), step));
      }
    }
  }
  /// Enqueues the tensors that `chosen` names, fused, on every rank.
  void enqueue(const std::vector<std::size_t>& chosen, std::uint64_t wanted) {
    for (std::size_t r = 0; r < stores_.size(); ++r) {
      auto run = std::make_unique<CollectiveRun>();
      run->dtype = dtype_;
      run->op = op;
      run->codec = codec_;
      run->prescale = prescale;
      run->finish = {op == ReduceOp::average ? static_cast<int>(stores_.size()) : 1, postscale};
      if (codec_->error_feedback()) run->residuals = &stores_[r];
      const std::uint64_t unit = std::max<std::uint64_t>(64, codec_->traits().block * 4);
      for (const std::size_t t : chosen) {
        Tensor& tensor = tensors[t];
        if (tensor.count == 0) continue;
        const std::uint64_t start = (run->total_bytes + unit - 1) / unit * unit;
        Residual* residual =
            run->residuals == nullptr ? nullptr : &stores_[r].open(tensor.name, tensor.count);
        run->pieces.push_back({tensor.input[r].data(), tensor.output[r].data(), start,
                               tensor.count * sizeof(float), residual});
        run->total_bytes = start + tensor.count * sizeof(float);
      }
      ranks_->enqueue(static_cast<int>(r), row_, 0, std::move(run), wanted);
    }
  }
  void enqueue_all(std::uint64_t wanted) {
    std::vector<std::size_t> all;
    for (std::size_t t = 0; t < tensors.size(); ++t)
      all.push_back(t);
    enqueue(all, wanted);
  }

  void put(std::vector<std::byte>& bytes, std::size_t i, float value) const {
    narrow(&value, dtype_, bytes.data() + i * size_of(dtype_), 1);
  }
  [[nodiscard]] float get(const std::vector<std::byte>& bytes, std::size_t i) const {
    float value = 0;
    widen(dtype_, bytes.data() + i * size_of(dtype_), &value, 1);
    return value;
  }
  [[nodiscard]] const ResidualStore& store(int rank) const {
    return stores_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] float residual(int rank, const std::string& name, std::size_t i) const {
    const Residual* found = store(rank).find(name);
    return found == nullptr ? 0 : found->values[i];
  }
  [[nodiscard]] const Codec& codec() const { return *codec_; }

 private:
  SharedCodec codec_;
  const AlgorithmRow& row_;
  DType dtype_;
  RankSetOptions options_;
  std::deque<ResidualStore> stores_;
  std::unique_ptr<RankSet> ranks_;
};

void require_equal_outputs(const Job& job) {
  for (const Tensor& tensor : job.tensors) {
    for (const auto& output : tensor.output) {
      if (output != tensor.output.front()) FAIL("ranks differ in " << tensor.name);
    }
  }
}

/// How far from the sum an element may be, the largest input being 8: an eighth of a code of int8
/// per encoding and rank, whole elements with topk.
double tolerance_of(const Codec& codec, int size) {
  const std::string name = codec.text().substr(0, 4);
  if (name == "topk") return 8.0 * size + 1;
  if (name == "int8") return 8.0 * size * size / 127;
  return 8.0 * size * size / 256;
}

TEST_CASE("codecs: all ranks end with the same bits near the sum, with all algorithms and links") {
  std::mt19937 random(1);
  for (const std::string transport : {"loopback", "shm", "mixed"}) {
    for (const std::string& text : codec_texts()) {
      for (const AlgorithmRow* row : rows_for(*codec_of(text))) {
        for (int size = 1; size <= 8; ++size) {
          INFO(transport << " " << text << " " << row->name << " size " << size);
          const auto n = static_cast<std::size_t>(size);
          Job job({.transport = transport, .size = size}, text, *row);
          for (const std::size_t count : {std::size_t{0}, std::size_t{1}, n - 1, n + 1,
                                          std::size_t{1001}, std::size_t{20000}}) {
            if (count == 20000 && size % 3 != 2) continue;
            job.add("x", count);
          }
          job.fill(0);
          for (std::size_t t = 0; t < job.tensors.size(); ++t) {
            job.tensors[t].name += std::to_string(t);
            job.enqueue({t}, 16384);
          }
          REQUIRE(job.ranks().run(random));
          require_equal_outputs(job);
          for (const Tensor& x : job.tensors) {
            for (std::size_t i = 0; i < x.count; ++i) {
              double sum = 0;
              for (int r = 0; r < size; ++r)
                sum += value_of(r, i + 31);
              const double difference = std::abs(job.get(x.output[0], i) - sum);
              if (difference > tolerance_of(job.codec(), size)) FAIL("element " << i);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("codecs: tensors of other floating types, averaged and scaled, come out in their type") {
  std::mt19937 random(2);
  for (const std::string& text : codec_texts()) {
    for (const AlgorithmRow* row : rows_for(*codec_of(text))) {
      for (const DType dtype : {DType::float16, DType::bfloat16, DType::float64}) {
        INFO(text << " " << row->name << " " << to_string(dtype));
        Job job({.transport = "shm", .size = 3}, text, *row, dtype);
        job.op = ReduceOp::average;
        job.prescale = 0.5;
        job.postscale = 4.0;
        for (const std::size_t count : {5, 256, 3000, 1})
          job.add("tensor" + std::string(count, 'x'), count);
        job.fill(0);
        job.enqueue_all(8192);
        REQUIRE(job.ranks().run(random));
        require_equal_outputs(job);
        const double tolerance = tolerance_of(job.codec(), 3) * 2 / 3 + 0.1;
        for (const Tensor& tensor : job.tensors) {
          for (std::size_t i = 0; i < tensor.count; ++i) {
            double sum = 0;
            for (const auto& input : tensor.input)
              sum += job.get(input, i);
            const double expected = sum * 0.5 / 3 * 4;
            if (std::abs(job.get(tensor.output[0], i) - expected) > tolerance) FAIL(i);
          }
        }
      }
    }
  }
}

TEST_CASE("codecs: bf16 and exchange give the sum of the rounded inputs, to the bit") {
  std::mt19937 random(3);
  const AlgorithmRow& row = *find_algorithm("exchange", Collective::allreduce);
  Job job({.size = 4}, "bf16", row);
  job.add("x", 3000);
  job.fill(0);
  job.enqueue_all(4096);
  REQUIRE(job.ranks().run(random));
  for (std::size_t i = 0; i < 3000; ++i) {
    float sum = 0;
    for (int r = 0; r < 4; ++r) {
      const float value = value_of(r, i + 31);
      std::uint16_t half = 0;
      float rounded = 0;
      narrow(&value, DType::bfloat16, reinterpret_cast<std::byte*>(&half), 1);
      widen(DType::bfloat16, reinterpret_cast<const std::byte*>(&half), &rounded, 1);
      sum = r == 0 ? rounded : sum + rounded;
    }
    REQUIRE(job.get(job.tensors[0].output[0], i) == sum);
  }
}

TEST_CASE("error feedback: what goes in comes out or is kept, though fusion changes every step") {
  // Sum over steps and ranks of inputs = sum of outputs + sum of residuals. Segments of 8 KB span
  // three tensors and more; the order, the company and the cut of tensors change from step to step.
  const std::vector<std::size_t> sizes = {10, 300, 700, 1, 2500, 129, 4096};
  for (const std::string& text : codec_texts()) {
    const SharedCodec codec = codec_of(text);
    if (!codec->error_feedback()) continue;
    for (const AlgorithmRow* row : rows_for(*codec)) {
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average}) {
        INFO(text << " " << row->name << " " << to_string(op));
        std::mt19937 random(5);
        const int size = 3;
        Job job({.transport = "shm", .size = size}, text, *row);
        job.op = op;
        std::vector<std::vector<double>> given, got;
        for (const std::size_t count : sizes) {
          job.add("t" + std::to_string(count), count);
          given.emplace_back(count);
          got.emplace_back(count);
        }
        for (int step = 0; step < 100; ++step) {
          job.fill(step);
          std::vector<std::size_t> order = {0, 1, 2, 3, 4, 5, 6};
          std::shuffle(order.begin(), order.end(), random);
          for (std::size_t first = 0; first < order.size();) {
            const std::size_t end = std::min(order.size(), first + 1 + random() % 5);
            job.enqueue({order.begin() + static_cast<std::ptrdiff_t>(first),
                         order.begin() + static_cast<std::ptrdiff_t>(end)},
                        4096u << random() % 3);
            first = end;
          }
          REQUIRE(job.ranks().run(random));
          require_equal_outputs(job);
          for (std::size_t t = 0; t < sizes.size(); ++t) {
            const Tensor& tensor = job.tensors[t];
            for (std::size_t i = 0; i < tensor.count; ++i) {
              for (const auto& input : tensor.input)
                given[t][i] += job.get(input, i);
              got[t][i] += job.get(tensor.output[0], i) * (op == ReduceOp::average ? size : 1.0);
            }
          }
        }
        double kept_at_all = 0;
        for (std::size_t t = 0; t < sizes.size(); ++t) {
          for (std::size_t i = 0; i < sizes[t]; ++i) {
            double kept = 0;
            for (int r = 0; r < size; ++r)
              kept += job.residual(r, job.tensors[t].name, i);
            kept_at_all += std::abs(kept);
            // 300 inputs of up to 8, and as many additions in float32.
            const double lost = given[t][i] - got[t][i] - kept;
            if (std::abs(lost) > 300 * 8 * 1e-6) FAIL("element " << i << " lost " << lost);
          }
        }
        CHECK(kept_at_all > 0);
      }
    }
  }
}

TEST_CASE("error feedback: without it the same runs lose something, so the sums above can fail") {
  std::mt19937 random(6);
  Job job({.size = 3}, "int8", *find_algorithm("direct", Collective::allreduce));
  job.add("x", 2500);
  double lost = 0;
  for (int step = 0; step < 20; ++step) {
    job.fill(0);
    job.enqueue_all(8192);
    REQUIRE(job.ranks().run(random));
    for (std::size_t i = 0; i < 2500; ++i) {
      double sum = 0;
      for (const auto& input : job.tensors[0].input)
        sum += job.get(input, i);
      lost = std::max(lost, std::abs(sum - job.get(job.tensors[0].output[0], i)) * 20);
    }
  }
  CHECK(lost > 300 * 8 * 1e-6);
}

TEST_CASE("error feedback: NaN or infinity of one rank reaches all, and no residual") {
  std::mt19937 random(7);
  for (const std::string& text : codec_texts()) {
    for (const AlgorithmRow* row : rows_for(*codec_of(text))) {
      for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
        for (int culprit = 0; culprit < 3; ++culprit) {
          INFO(text << " " << row->name << " " << bad << " from rank " << culprit);
          Job job({.size = 3}, text, *row);
          job.add("x", 6000);
          job.fill(0);
          job.enqueue_all(8192);
          REQUIRE(job.ranks().run(random));
          std::vector<std::vector<float>> before;
          for (int r = 0; r < 3; ++r) {
            const Residual* kept = job.store(r).find("x");
            before.push_back(kept == nullptr ? std::vector<float>{} : kept->values);
          }

          const std::size_t at = 2345;
          job.fill(1);
          job.put(job.tensors[0].input[static_cast<std::size_t>(culprit)], at, bad);
          job.enqueue_all(8192);
          REQUIRE(job.ranks().run(random));
          require_equal_outputs(job);
          CHECK_FALSE(std::isfinite(job.get(job.tensors[0].output[0], at)));
          bool some_went_on = false;
          for (int r = 0; r < 3 && job.codec().error_feedback(); ++r) {
            const std::vector<float>& now = job.store(r).find("x")->values;
            for (const float value : now)
              REQUIRE(std::isfinite(value));
            // The element's segment is as before; others have gone on.
            CHECK(now[at] == before[static_cast<std::size_t>(r)][at]);
            some_went_on = some_went_on || now != before[static_cast<std::size_t>(r)];
          }
          CHECK(some_went_on == job.codec().error_feedback());

          // And the next step is sound again.
          job.fill(2);
          job.enqueue_all(8192);
          REQUIRE(job.ranks().run(random));
          CHECK(std::isfinite(job.get(job.tensors[0].output[0], at)));
        }
      }
    }
  }
}

TEST_CASE("error feedback: a cut collective leaves each segment as not begun, or as finished") {
  // Twin jobs: in one everything is finished, in the other a fault cuts some message. Rank by rank
  // and segment by segment, outputs and residuals are those before, or those of the twin.
  const int size = 3;
  const std::size_t count = 6000;
  for (const std::string text : {"int8+ef", "bf16+ef", "topk(ratio=0.1)+ef"}) {
    for (const AlgorithmRow* row : rows_for(*codec_of(text))) {
      std::uint64_t most = 0;
      std::size_t cut = 0;
      for (const FaultAction action : {FaultAction::close, FaultAction::stall}) {
        for (int from = 0; from < size; ++from) {
          const int to = (from + 1) % size;
          for (std::uint64_t message = 0; message <= most; ++message) {
            INFO(text << " " << row->name << " message " << message << " of rank " << from);
            std::mt19937 random(static_cast<unsigned>(message));
            Job whole({.size = size}, text, *row);
            Job broken({.size = size, .faults = {{Rank(from), Rank(to), message, action}}}, text,
                       *row);
            for (Job* job : {&whole, &broken}) {
              job->add("x", count);
              job->fill(0);
              job->enqueue_all(4096);
              job->ranks().run(random);
            }
            most = std::max(most, whole.ranks().hub().sent(Rank(from), Rank(to)));
            for (int r = 0; r < size; ++r) {
              const auto i = static_cast<std::size_t>(r);
              REQUIRE(broken.tensors[0].input[i] == whole.tensors[0].input[i]);
              const std::uint64_t done = broken.ranks()[r].executor->segments_finished();
              if (broken.ranks()[r].executor->busy()) ++cut;
              const std::size_t segment =
                  whole.ranks()[r].schedules.empty()
                      ? 0
                      : fit_encoded_segment(*whole.ranks()[r].schedules[0], whole.codec(), false,
                                            64 << 10, 4096) /
                            4;
              const std::size_t end = std::min<std::size_t>(count, done * segment);
              for (std::size_t k = 0; k < count; ++k) {
                const bool finished = k < end;
                const float residual = broken.residual(r, "x", k);
                if (residual != (finished ? whole.residual(r, "x", k) : 0)) FAIL("residual " << k);
                std::uint32_t bits = 0;
                std::memcpy(&bits, broken.tensors[0].output[i].data() + 4 * k, 4);
                std::uint32_t expected = 0x55555555;
                if (finished) {
                  std::memcpy(&expected, whole.tensors[0].output[i].data() + 4 * k, 4);
                }
                if (bits != expected) FAIL("output " << k);
              }
            }
          }
        }
      }
      CHECK(most > 3);
      CHECK(cut > 10);
    }
  }
}

TEST_CASE("codecs: fp16 sums that exceed its range are averaged first") {
  std::mt19937 random(8);
  const int size = 8;
  Job job({.transport = "shm", .size = size}, "fp16",
          *find_algorithm("direct", Collective::allreduce));
  job.op = ReduceOp::average;
  job.add("x", 1000);
  for (auto& input : job.tensors[0].input) {
    for (std::size_t i = 0; i < 1000; ++i)
      job.put(input, i, 20000.0F);
  }
  job.enqueue_all(4096);
  REQUIRE(job.ranks().run(random));
  for (std::size_t i = 0; i < 1000; ++i)
    REQUIRE(job.get(job.tensors[0].output[0], i) == 20000.0F);
}

TEST_CASE("codecs: what a contribution becomes does not depend on what it was fused with") {
  // By exchange every contribution is encoded; with the others an owner adds its own as it is, and
  // who owns an element does depend on fusion.
  std::mt19937 random(9);
  for (const std::string text : {"int8", "bf16"}) {
    const AlgorithmRow& row = *find_algorithm("exchange", Collective::allreduce);
    Job alone({.size = 3}, text, row), fused({.size = 3}, text, row);
    for (Job* job : {&alone, &fused}) {
      job->add("a", 77);
      job->add("bb", 900);
      job->add("ccc", 5);
      job->fill(0);
    }
    for (std::size_t t = 0; t < 3; ++t)
      alone.enqueue({t}, 1 << 20);
    fused.enqueue({2, 0, 1}, 4096);
    REQUIRE(alone.ranks().run(random));
    REQUIRE(fused.ranks().run(random));
    for (std::size_t t = 0; t < 3; ++t)
      CHECK((alone.tensors[t].output == fused.tensors[t].output));
  }
}

TEST_CASE("codecs: a payload that a peer garbled is an error that names it") {
  // topk's payload is checked entry by entry: the loopback's own crc is out of the way here.
  auto row = find_algorithm("exchange", Collective::allreduce);
  const Schedule schedule = row->make_encoded(2, 0);
  CollectiveRun run;
  run.schedule = &schedule;
  run.dtype = DType::float32;
  run.codec = codec_of("topk(ratio=0.1)");
  std::vector<float> in(100, 1.0F), out(100);
  run.pieces.push_back({reinterpret_cast<const std::byte*>(in.data()),
                        reinterpret_cast<std::byte*>(out.data()), 0, 400});
  run.total_bytes = 400;
  run.segment_bytes = fit_encoded_segment(schedule, *run.codec, false, 64 << 10, 64 << 10);
  EncodedSegment segment;
  segment.begin(run, 0, false, 0);
  std::vector<std::byte> slot(64 << 10);
  std::vector<std::byte> garbled(84, std::byte{0xff});
  std::vector<std::span<const std::byte>> received(schedule.tasks.size());
  for (std::size_t i = 0; i < schedule.tasks.size(); ++i) {
    const Task& task = schedule.tasks[i];
    if (task.kind == Primitive::recv) {
      CHECK(segment.accepts(task, garbled.size()));
      CHECK_FALSE(segment.accepts(task, 4096));
      received[i] = garbled;
    }
    if (task.kind != Primitive::merge) continue;
    const auto ran = segment.run(task, {slot.data(), received});
    if (!task.finish) {
      REQUIRE(ran);
      continue;
    }
    REQUIRE_FALSE(ran);
    CHECK(ran.error().kind == ErrorKind::protocol);
    CHECK(ran.error().peer == Rank(1));
    CHECK(ran.error().message == "rank 1 sent what is no payload of codec 'topk(ratio=0.1)'");
  }
}

TEST_CASE("codecs: encoded segments fit their slots, down to one block per chunk") {
  for (const AlgorithmRow* row : rows_for(*codec_of("int8"))) {
    for (const int size : {2, 4, 8, 16}) {
      const Schedule schedule = row->make_encoded(size, 0);
      for (const std::uint64_t slot : {16u << 10, 64u << 10, 1u << 20}) {
        for (const bool views : {false, true}) {
          INFO(row->name << " size " << size << " slot " << slot);
          CollectiveRun run;
          run.schedule = &schedule;
          run.codec = codec_of("int8");
          run.total_bytes = 1 << 30;
          run.segment_bytes = fit_encoded_segment(schedule, *run.codec, views, slot, 1 << 20);
          REQUIRE(run.segment_bytes > 0);
          CHECK(run.segment_bytes % (1024 * static_cast<std::uint64_t>(schedule.grid)) == 0);
          const Segment segment(run, 0);
          for (std::uint16_t b = 0; b < schedule.buffers.size(); ++b) {
            if (views && schedule.buffers[b].landing) continue;
            CHECK(segment.offset(place(b, schedule.buffers[b].cells)) <= slot);
          }
        }
      }
      CHECK(fit_encoded_segment(schedule, *codec_of("int8"), false, 256, 1 << 20) == 0);
    }
  }
}

}  // namespace
}  // namespace hora::test
