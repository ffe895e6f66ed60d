// Checked access to numpy arrays, and vectors passed to numpy without a copy.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dart/span.h"

namespace py = pybind11;

// Matches an axis of any length.
inline constexpr py::ssize_t kAny = -1;

inline std::string shape_text(const std::vector<py::ssize_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + (shape[i] == kAny ? "*" : std::to_string(shape[i]));
  }
  return text + "]";
}

// Throws ValueError unless the array is aligned and has dtype T and this shape.
template <class T>
void check_type_and_shape(const py::array& array, const std::string& name,
                          const std::vector<py::ssize_t>& shape) {
  const auto required = py::dtype::of<T>();
  if (!array.dtype().equal(required)) {
    throw py::value_error(name + " must be " + std::string(py::str(required)) + ", got " +
                          std::string(py::str(array.dtype())));
  }
  const std::vector<py::ssize_t> actual(array.shape(), array.shape() + array.ndim());
  const bool fits = std::equal(
      actual.begin(), actual.end(), shape.begin(), shape.end(),
      [](py::ssize_t length, py::ssize_t want) { return want == kAny || length == want; });
  if (!fits) {
    throw py::value_error(name + " must have shape " + shape_text(shape) + ", got " +
                          shape_text(actual));
  }
  if (!(array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_)) {
    throw py::value_error(name + " must be aligned");
  }
}

// As check_type_and_shape, and requires a C-contiguous array.
template <class T>
void check_array(const py::array& array, const std::string& name,
                 const std::vector<py::ssize_t>& shape) {
  check_type_and_shape<T>(array, name, shape);
  if (!(array.flags() & py::array::c_style)) {
    throw py::value_error(name + " must be C-contiguous");
  }
}

template <class T>
const T* data(const py::array& array) {
  return static_cast<const T*>(array.data());
}

template <class T>
dart::Span<T> vector_span(const py::array& array, const std::string& name) {
  check_array<T>(array, name, {kAny});
  return {data<T>(array), static_cast<std::size_t>(array.size())};
}

template <class T>
py::array to_numpy(std::vector<T>&& values) {
  auto owner = std::make_unique<std::vector<T>>(std::move(values));
  const auto size = static_cast<py::ssize_t>(owner->size());
  const T* first = owner->data();
  py::capsule release(owner.release(), [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return py::array_t<T>(size, first, release);
}
