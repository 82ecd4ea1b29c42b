// The Python face of RuntimeBinding: plain numbers in, handles out.
//
// A call gives a tensor as (address, shape, dtype number), so no framework's headers are needed and
// one build serves all versions of all frameworks. The package checks what can be wrong about a
// tensor (device, layout, dtype); it is the only caller. A synchronous call crosses into C++ once.
#include <algorithm>
#include <functional>
#include <numeric>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "python/bindings/arguments.h"
#include "python/bindings/runtime.h"

namespace hora {

namespace py = pybind11;

namespace {

/// Counted names change from step to step, so nothing could be kept under them.
void require_name_for(const std::string& codec) {
  if (codec.ends_with("+ef")) {
    throw py::value_error("codec '" + codec +
                          "' keeps an error under the tensor's name: give the call a name, the "
                          "same in every step");
  }
}

/// One collective call, as the package gives it.
Submission make_submission(RuntimeBinding& runtime, int kind, py::handle name, int dtype,
                           const py::tuple& shape, std::uintptr_t input, std::uintptr_t output,
                           int op, py::handle prescale, py::handle postscale, int root,
                           const py::tuple& splits, std::uint32_t set, std::string codec) {
  const std::optional<Kind> collective = kind_from(kind);
  const std::optional<DType> element = dtype_from(dtype);
  const std::optional<ReduceOp> reduction = reduce_op_from(op);
  if (!collective || !is_collective(*collective))
    throw py::value_error("no collective has the number " + std::to_string(kind));
  if (!element) throw py::value_error("no dtype has the number " + std::to_string(dtype));
  if (!reduction) throw py::value_error("no reduction has the number " + std::to_string(op));
  Submission submission;
  Request& request = submission.request;
  request.kind = *collective;
  request.set = SetId(set);
  request.dtype = *element;
  request.op = *reduction;
  request.root = root;
  request.prescale = factor_from(prescale, "prescale_factor");
  request.postscale = factor_from(postscale, "postscale_factor");
  request.shape = shape_from(shape);
  request.splits = shape_from(splits);
  if (name.is_none()) require_name_for(codec);
  request.codec = std::move(codec);
  // Last: an unnamed call that fails before has not been counted.
  request.name = runtime.names().full_name(request, name);
  submission.input = reinterpret_cast<const void*>(input);
  submission.output = reinterpret_cast<void*>(output);
  return submission;
}

Handle submit(RuntimeBinding& self, int kind, py::handle name, int dtype, const py::tuple& shape,
              std::uintptr_t input, std::uintptr_t output, int op, py::handle prescale,
              py::handle postscale, int root, const py::tuple& splits, std::uint32_t set,
              std::string codec) {
  return self.submit(make_submission(self, kind, name, dtype, shape, input, output, op, prescale,
                                     postscale, root, splits, set, std::move(codec)));
}

/// Returns nothing: a handle would be the most expensive thing about a small allreduce.
void run(RuntimeBinding& self, int kind, py::handle name, int dtype, const py::tuple& shape,
         std::uintptr_t input, std::uintptr_t output, const py::object& keep, int op,
         py::handle prescale, py::handle postscale, int root, std::uint32_t set,
         std::string codec) {
  self.run(make_submission(self, kind, name, dtype, shape, input, output, op, prescale, postscale,
                           root, py::tuple(), set, std::move(codec)),
           keep);
}

/// For the kinds whose output the core makes: the handle has it.
Handle produce(RuntimeBinding& self, int kind, py::handle name, int dtype, const py::tuple& shape,
               std::uintptr_t input, const py::object& keep, int op, py::handle prescale,
               py::handle postscale, const py::tuple& splits, std::uint32_t set) {
  return self.run(make_submission(self, kind, name, dtype, shape, input, 0, op, prescale, postscale,
                                  0, splits, set, {}),
                  keep);
}

/// What changes who takes part: waits, and gives the handle's value.
std::int64_t run_change(RuntimeBinding& runtime, Kind kind, SetId set,
                        std::vector<std::int32_t> members) {
  Submission submission;
  submission.request.kind = kind;
  submission.request.name = "process_set.noname";  // One at a time, whether it comes or goes.
  submission.request.dtype = DType::uint8;
  submission.request.set = set;
  submission.request.members = std::move(members);
  return runtime.run(std::move(submission), py::none())->value();
}

std::int64_t join(RuntimeBinding& self) {
  const std::int64_t last = run_change(self, Kind::join, kGlobalSet, {});
  self.names().after_join();
  return last;
}

std::int64_t add_process_set(RuntimeBinding& self, std::vector<std::int32_t> ranks) {
  const std::int64_t number = run_change(self, Kind::add_set, kGlobalSet, std::move(ranks));
  self.names().begin(SetId(static_cast<std::uint32_t>(number)));
  return number;
}

std::int64_t remove_process_set(RuntimeBinding& self, std::uint32_t set) {
  return run_change(self, Kind::remove_set, SetId(set), {});
}

py::dict process_sets_of(const RuntimeBinding& runtime) {
  py::dict sets;
  for (const SharedSet& set : runtime.process_sets()) {
    sets[py::int_(set->id.value)] = py::cast(set->ranks);
  }
  return sets;
}

/// Members of one kind, as parallel lists; their full names are made from the group's.
std::vector<Handle> submit_group(RuntimeBinding& self, int kind, py::handle name,
                                 const py::list& dtypes, const py::list& shapes,
                                 const py::list& sources, const py::list& targets, int op,
                                 py::handle prescale, py::handle postscale, std::uint32_t set,
                                 const std::string& codec) {
  std::vector<Submission> members;
  std::string group;
  if (name.is_none()) require_name_for(codec);
  const std::size_t count = dtypes.size();
  members.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    members.push_back(make_submission(
        self, kind, py::str(), py::cast<int>(dtypes[i]), py::cast<py::tuple>(shapes[i]),
        py::cast<std::uintptr_t>(sources[i]), py::cast<std::uintptr_t>(targets[i]), op, prescale,
        postscale, 0, py::tuple(), set, codec));
    Request& request = members.back().request;
    if (i == 0) group = self.names().group_name(request, name);
    request.name = member_name(group, i, count);
  }
  return self.submit_group(group, std::move(members));
}

/// A call, or a group of `members` tensors, has failed in Python before it came here.
void refuse(RuntimeBinding& self, int kind, py::handle name, const std::string& why,
            std::uint32_t set, std::size_t members) {
  const std::optional<Kind> collective = kind_from(kind);
  if (!collective || !is_collective(*collective))
    throw py::value_error("no collective has the number " + std::to_string(kind));
  std::vector<Request> calls(std::max<std::size_t>(members, 1));
  std::string group;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    Request& call = calls[i];
    call.kind = *collective;
    call.set = SetId(set);
    if (i == 0 && members > 0) group = self.names().group_name(call, name);
    call.name = members > 0 ? member_name(group, i, members) : self.names().full_name(call, name);
    call.group = group;
    call.group_size = static_cast<std::int32_t>(members);
  }
  self.refuse(calls, why);
}

Output take_output(Completion& completion, std::size_t element_bytes) {
  const std::vector<std::int64_t>& shape = completion.output_shape();
  const auto elements = static_cast<std::size_t>(
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
  return {completion.take_output(), elements * element_bytes};
}

/// [(end, ranks), ...]: whose contributions the elements up to `end` have; None: to the last one.
py::list contributions_of(const Completion& handle) {
  py::list ranges;
  for (const ElementRange& range : handle.contributions()) {
    const bool is_last = range.end == ~std::uint64_t{0};
    const py::object end = is_last ? py::none() : py::object(py::int_(range.end));
    ranges.append(py::make_tuple(end, py::tuple(py::cast(*range.contributors))));
  }
  return ranges;
}

py::dict stats_of(const RuntimeBinding& runtime) {
  const RuntimeStats stats = runtime.stats();
  py::dict numbers;
  numbers["collectives"] = stats.collectives;
  numbers["tensors"] = stats.tensors;
  numbers["negotiation_bytes_out"] = stats.negotiation_bytes_out;
  numbers["negotiation_bytes_in"] = stats.negotiation_bytes_in;
  numbers["segments"] = stats.segments;
  numbers["payload_bytes"] = stats.payload_bytes;
  numbers["sleeps"] = stats.sleeps;
  return numbers;
}

std::string codec_words(const std::string& words) {
  auto canonical = canonical_codec(words);
  if (!canonical) throw py::value_error(canonical.error().message);
  return std::move(*canonical);
}

bool is_homogeneous(const RuntimeBinding& runtime) {
  const std::vector<Member>& members = runtime.world().members;
  return std::all_of(members.begin(), members.end(), [&](const Member& member) {
    return member.local_size == members.front().local_size;
  });
}

void bind_handle(py::module_& module) {
  py::class_<Completion, Handle>(module, "Handle", "A collective in flight.")
      .def("done", &Completion::done)
      .def_property_readonly("contributions", &contributions_of)
      .def("take_output", &take_output, py::arg("element_bytes"),
           "The output that the core has made; once, after success.")
      .def_property_readonly(
          "output_shape",
          [](const Completion& handle) { return py::tuple(py::cast(handle.output_shape())); })
      .def_property_readonly("first_dims", [](const Completion& handle) {
        return py::tuple(py::cast(handle.first_dims()));
      });
}

}  // namespace

void bind_runtime(py::module_& module) {
  using namespace py::literals;
  constexpr int kSum = static_cast<int>(ReduceOp::sum);
  module.def("address", &address_of, "buffer"_a,
             "Where the bytes of a C-contiguous buffer start; it may not be resized meanwhile.");
  module.def("codec", &codec_words, "words"_a,
             "The words of a codec in canonical form; '' for none. Raises ValueError.");
  bind_handle(module);
  py::class_<RuntimeBinding>(module, "Runtime", "A member of a job; see hora.init.")
      .def_static("start", &RuntimeBinding::start, "process_sets"_a)
      .def("submit", &submit, "kind"_a, "name"_a, "dtype"_a, "shape"_a, "source"_a, "target"_a,
           "op"_a = kSum, "prescale"_a = 1.0, "postscale"_a = 1.0, "root"_a = 0,
           "splits"_a = py::tuple(), "process_set"_a = 0, "codec"_a = "")
      .def("run", &run, "kind"_a, "name"_a, "dtype"_a, "shape"_a, "source"_a, "target"_a, "keep"_a,
           "op"_a = kSum, "prescale"_a = 1.0, "postscale"_a = 1.0, "root"_a = 0,
           "process_set"_a = 0, "codec"_a = "")
      .def("produce", &produce, "kind"_a, "name"_a, "dtype"_a, "shape"_a, "source"_a, "keep"_a,
           "op"_a = kSum, "prescale"_a = 1.0, "postscale"_a = 1.0, "splits"_a = py::tuple(),
           "process_set"_a = 0)
      .def("join", &join)
      .def("add_process_set", &add_process_set, "ranks"_a)
      .def("remove_process_set", &remove_process_set, "number"_a)
      .def("process_sets", &process_sets_of)
      .def("submit_group", &submit_group, "kind"_a, "name"_a, "dtypes"_a, "shapes"_a, "sources"_a,
           "targets"_a, "op"_a = kSum, "prescale"_a = 1.0, "postscale"_a = 1.0, "process_set"_a = 0,
           "codec"_a = "")
      .def("refuse", &refuse, "kind"_a, "name"_a, "why"_a, "process_set"_a, "members"_a = 0)
      .def("wait", &RuntimeBinding::wait, py::arg("handle"))
      .def("poll", &RuntimeBinding::poll, py::arg("handle"))
      .def("start_timeline", &RuntimeBinding::start_timeline, py::arg("pattern"),
           py::arg("mark_cycles"))
      .def("stop_timeline", &RuntimeBinding::stop_timeline)
      .def("shutdown", &RuntimeBinding::shutdown, py::arg("last_words"))
      .def("on_fork_child", &RuntimeBinding::on_fork_child)
      .def("require_own_process", &RuntimeBinding::require_own_process)
      .def("stats", &stats_of)
      .def_property_readonly("rank",
                             [](const RuntimeBinding& self) { return self.world().self.value; })
      .def_property_readonly("size", [](const RuntimeBinding& self) { return self.world().size(); })
      .def_property_readonly(
          "local_rank", [](const RuntimeBinding& self) { return self.world().me().local_rank; })
      .def_property_readonly(
          "local_size", [](const RuntimeBinding& self) { return self.world().me().local_size; })
      .def_property_readonly(
          "cross_rank", [](const RuntimeBinding& self) { return self.world().me().cross_rank; })
      .def_property_readonly(
          "cross_size", [](const RuntimeBinding& self) { return self.world().me().cross_size; })
      .def_property_readonly("is_homogeneous", &is_homogeneous);
}

}  // namespace hora
