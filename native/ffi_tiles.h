// Matrices in tiles among the arguments of foreign functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "dart/matrix.h"
#include "xla/ffi/api/ffi.h"

// True if an array has tiles of weights [in, out].
inline bool has_tiles(const xla::ffi::AnyBuffer& tiles, dart::WeightType type, std::size_t in,
                      std::size_t out) {
  const auto shape = tiles.dimensions();
  const auto size = [&](std::size_t axis) { return static_cast<std::size_t>(shape[axis]); };
  const std::size_t count = (out + dart::kTileWidth - 1) / dart::kTileWidth;
  if (dart::in_blocks(type)) {
    return tiles.element_type() == xla::ffi::U8 && shape.size() == 2 && size(0) == count &&
           (!dart::form_of(type).super || in % dart::block_inputs(dart::form_of(type)) == 0) &&
           size(1) == dart::tile_bytes(dart::form_of(type), in);
  }
  const auto wanted = type == dart::WeightType::kFloat32 ? xla::ffi::F32 : xla::ffi::BF16;
  return tiles.element_type() == wanted && shape.size() == 3 && size(0) == count &&
         size(1) == in && size(2) == dart::kTileWidth;
}

// Reads matrices that follow each other among the arguments, with so many parts and inputs each, and
// types and outputs of each part. Returns false if they are others.
inline bool read_matrices(const xla::ffi::RemainingArgs& tiles,
                          xla::ffi::Span<const std::int32_t> counts,
                          xla::ffi::Span<const std::int64_t> ins,
                          xla::ffi::Span<const std::int32_t> types,
                          xla::ffi::Span<const std::int64_t> outs,
                          std::initializer_list<dart::Matrix*> matrices) {
  if (counts.size() != matrices.size() || ins.size() != matrices.size() ||
      types.size() != tiles.size() || outs.size() != tiles.size()) {
    return false;
  }
  std::size_t i = 0, next = 0;
  for (dart::Matrix* matrix : matrices) {
    matrix->in = static_cast<std::size_t>(ins[i]);
    for (std::int32_t count = counts[i++]; count > 0; --count, ++next) {
      if (next == tiles.size()) return false;
      const auto part = tiles.get<xla::ffi::AnyBuffer>(next);
      const auto type = static_cast<dart::WeightType>(types[next]);
      const auto out = static_cast<std::size_t>(outs[next]);
      if (!part || !has_tiles(*part, type, matrix->in, out)) return false;
      matrix->parts.push_back({part->untyped_data(), type, out});
      matrix->out += out;
    }
  }
  return next == tiles.size();
}

// Adds the attributes that `read_matrices` reads to a function's binding.
template <class Binding>
auto with_matrices(Binding binding) {
  return std::move(binding)
      .template Attr<xla::ffi::Span<const std::int32_t>>("counts")
      .template Attr<xla::ffi::Span<const std::int64_t>>("ins")
      .template Attr<xla::ffi::Span<const std::int32_t>>("types")
      .template Attr<xla::ffi::Span<const std::int64_t>>("outs");
}

inline dart::Activation activation_of(std::string_view name) {
  return name == "gelu" ? dart::Activation::kGelu : dart::Activation::kSilu;
}
