// Output: memory that the core allocated, handed to Python without a copy.
//
// The shape of an allgather's result is known only when all ranks have spoken, so the core
// allocates it. Output owns that memory and shows it through the buffer protocol:
// numpy.frombuffer and torch.frombuffer make arrays that keep the Output alive. Neither library's
// headers are needed.
#pragma once

#include <cstddef>
#include <memory>

#include <pybind11/pybind11.h>

namespace hora {

class Output {
 public:
  using Memory = std::unique_ptr<std::byte[], void (*)(std::byte*)>;

  Output(Memory memory, std::size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}

  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  Memory memory_;
  std::size_t bytes_;
};

/// Adds the class to the module.
void bind_output(pybind11::module_& module);

}  // namespace hora
