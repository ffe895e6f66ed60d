// A Python function as an XLA foreign function on the CPU. A program names it by a number that it
// takes as an argument, so that compiled programs can be kept in files, unlike JAX's own callbacks.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "bindings.h"
#include "ffi_handlers.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
namespace py = pybind11;

// Never destroyed: a program may still be running while the process exits.
py::object& function() {
  static py::object& function = *new py::object;
  return function;
}

// A view of a buffer of 32-bit integers.
py::array view(const ffi::AnyBuffer& buffer) {
  const bool is_signed = buffer.element_type() == ffi::S32;
  if (!is_signed && buffer.element_type() != ffi::U32) {
    throw py::value_error("dart_python: neither int32 nor uint32");
  }
  const auto shape = buffer.dimensions();
  return py::array(is_signed ? py::dtype::of<std::int32_t>() : py::dtype::of<std::uint32_t>(),
                   std::vector<py::ssize_t>(shape.begin(), shape.end()), buffer.untyped_data(),
                   py::capsule(buffer.untyped_data(), [](void*) {}));  // not a copy
}

// Calls function(handle, inputs, outputs), which writes the outputs.
ffi::Error call(ffi::BufferR0<ffi::S32> handle, ffi::RemainingArgs inputs,
                ffi::RemainingRets outputs) {
  const py::gil_scoped_acquire gil;
  py::list in, out;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const py::array input = view(inputs.get<ffi::AnyBuffer>(i).value());
    input.attr("setflags")(py::arg("write") = false);
    in.append(input);
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    out.append(view(*outputs.get<ffi::AnyBuffer>(i).value()));
  }
  function()(*handle.typed_data(), in, out);
  return ffi::Error::Success();
}

}  // namespace

DART_FFI_HANDLER(dart_python, call);

void call_in_programs(py::object new_function) { function() = std::move(new_function); }
