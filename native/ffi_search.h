// Code shared by the search's handlers for CPUs (ffi.cpp) and for CUDA (ffi_cuda.cpp): arguments,
// attributes, their checks, and the report of failures.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "dart/packed_search.h"
#include "dart/tree_search.h"
#include "ffi_errors.h"
#include "xla/ffi/api/ffi.h"

// A search's handle (dart/search_handle.h), the packed array, and the trees to write; then the
// layout of the packed array (dart/packed_search.h).
inline auto search_binding() {
  namespace ffi = xla::ffi;
  return ffi::Ffi::Bind()
      .Arg<ffi::BufferR0<ffi::S32>>()
      .Arg<ffi::Buffer<ffi::S32>>()
      .Ret<ffi::Buffer<ffi::S32>>()
      .Attr<std::int64_t>("context")
      .Attr<std::int64_t>("first")
      .Attr<std::int64_t>("levels")
      .Attr<std::int64_t>("candidates")
      .Attr<std::int64_t>("pairs")
      .Attr<std::int64_t>("draws");
}

// Throws std::invalid_argument if the array has another layout than the attributes say.
inline dart::PackedLayout packed_layout(const xla::ffi::Buffer<xla::ffi::S32>& packed,
                                        std::int64_t context, std::int64_t first,
                                        std::int64_t levels, std::int64_t candidates,
                                        std::int64_t pairs, std::int64_t draws) {
  dart::PackedLayout layout;
  const auto shape = packed.dimensions();
  if (shape.size() == 2) {
    layout = {shape[0], shape[1], context, first, levels, candidates, pairs, draws};
  }
  if (!layout.valid()) {
    throw std::invalid_argument("dart_search: packed candidates of another layout");
  }
  return layout;
}

// The nodes of trees for this many rows, the root not counted. Throws std::invalid_argument if the
// array cannot hold trees.
inline std::int64_t nodes_of(const xla::ffi::Buffer<xla::ffi::S32>& trees, std::int64_t rows) {
  const auto shape = trees.dimensions();
  if (shape.size() != 3 || shape[0] != rows || shape[1] != dart::kTreeRows || shape[2] < 1) {
    throw std::invalid_argument("dart_search: trees of another size");
  }
  return shape[2] - 1;
}
