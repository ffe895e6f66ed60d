// Python bindings of the search on NVIDIA GPUs.
#include <pybind11/stl.h>

#include "bindings.h"
#include "dart/cuda_runtime.h"
#include "dart/cuda_search.h"

#ifdef DART_FFI
#include "ffi.h"
#endif

void bind_cuda(pybind11::module_& m) {
  namespace py = pybind11;
  m.def("load_cuda_runtime", &dart::load_cuda_runtime, py::arg("path"),
        py::call_guard<py::gil_scoped_release>());
  m.def("take_search_error", &dart::take_search_error, py::arg("handle"));
#ifdef DART_FFI
  m.attr("cuda_ffi_handler") = py::capsule(dart_search_cuda_handler());
#else
  m.attr("cuda_ffi_handler") = py::none();
#endif
}
