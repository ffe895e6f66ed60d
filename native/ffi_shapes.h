// Shapes of foreign functions' arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "xla/ffi/api/ffi.h"

inline std::size_t size(std::int64_t dimension) { return static_cast<std::size_t>(dimension); }

// True if a shape has these sizes.
template <class Shape, class... Sizes>
bool is(const Shape& shape, Sizes... sizes) {
  std::size_t i = 0;
  return shape.size() == sizeof...(sizes) && ((size(shape[i++]) == std::size_t{sizes}) && ...);
}

// An optional argument, which has no elements if it is not there.
template <class Array>
auto or_null(const Array& array) {
  return array.element_count() == 0 ? nullptr : array.typed_data();
}

// True if an optional argument is not there or has `count` elements.
template <class Array>
bool none_or(const Array& array, std::size_t count) {
  return array.element_count() == 0 || array.element_count() == count;
}
