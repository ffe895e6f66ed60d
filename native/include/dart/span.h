// A non-owning view of a contiguous array (std::span is C++20).
#pragma once

#include <cstddef>
#include <vector>

namespace dart {

template <class T>
struct Span {
  const T* data = nullptr;
  std::size_t size = 0;

  Span() = default;
  Span(const T* data, std::size_t size) : data(data), size(size) {}
  Span(const std::vector<T>& owner) : data(owner.data()), size(owner.size()) {}

  const T* begin() const { return data; }
  const T* end() const { return data + size; }
  const T& operator[](std::size_t i) const { return data[i]; }
};

}  // namespace dart
