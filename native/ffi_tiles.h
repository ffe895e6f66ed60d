// Matrices in tiles among the arguments of foreign functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "dart/matrix.h"
#include "xla/ffi/api/ffi.h"

// Whether an array has tiles of weights [in, out].
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

// Reads a matrix with `matrix.in` inputs, whose parts are `count` arguments from `begin` on, of the
// types and with the outputs at the same places. Returns false if they are not.
inline bool read_matrix(const xla::ffi::RemainingArgs& tiles, std::size_t begin, std::size_t count,
                        xla::ffi::Span<const std::int32_t> types,
                        xla::ffi::Span<const std::int64_t> outs, dart::Matrix& matrix) {
  if (types.size() != tiles.size() || outs.size() != tiles.size() ||
      begin > tiles.size() || count > tiles.size() - begin) {
    return false;
  }
  for (std::size_t i = begin; i < begin + count; ++i) {
    const auto part = tiles.get<xla::ffi::AnyBuffer>(i);
    const auto type = static_cast<dart::WeightType>(types[i]);
    const auto out = static_cast<std::size_t>(outs[i]);
    if (!part || !has_tiles(*part, type, matrix.in, out)) return false;
    matrix.parts.push_back({part->untyped_data(), type, out});
    matrix.out += out;
  }
  return true;
}

// Reads matrices that follow each other, with so many parts and inputs each.
inline bool read_matrices(const xla::ffi::RemainingArgs& tiles,
                          xla::ffi::Span<const std::int32_t> counts,
                          xla::ffi::Span<const std::int64_t> ins,
                          xla::ffi::Span<const std::int32_t> types,
                          xla::ffi::Span<const std::int64_t> outs,
                          std::initializer_list<dart::Matrix*> matrices) {
  if (counts.size() != matrices.size() || ins.size() != matrices.size()) return false;
  std::size_t i = 0, begin = 0;
  for (dart::Matrix* matrix : matrices) {
    const auto count = static_cast<std::size_t>(counts[i]);
    matrix->in = static_cast<std::size_t>(ins[i++]);
    if (!read_matrix(tiles, begin, count, types, outs, *matrix)) return false;
    begin += count;
  }
  return begin == tiles.size();
}

inline dart::Activation activation_of(std::string_view name) {
  return name == "gelu" ? dart::Activation::kGelu : dart::Activation::kSilu;
}
