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
  const auto wanted = type == dart::WeightType::kFloat32   ? xla::ffi::F32
                      : type == dart::WeightType::kFloat16 ? xla::ffi::F16
                                                           : xla::ffi::BF16;
  return tiles.element_type() == wanted && shape.size() == 3 && size(0) == count &&
         size(1) == in && size(2) == dart::kTileWidth;
}

// Reads matrices that follow each other among the arguments, given each matrix's number of parts
// and inputs, and each part's type and outputs.
class MatrixReader {
 public:
  MatrixReader(const xla::ffi::RemainingArgs& arguments, xla::ffi::Span<const std::int32_t> counts,
               xla::ffi::Span<const std::int64_t> ins, xla::ffi::Span<const std::int32_t> types,
               xla::ffi::Span<const std::int64_t> outs)
      : arguments_(arguments), counts_(counts), ins_(ins), types_(types), outs_(outs) {}

  // Reads the next matrices, from argument `at` on, which becomes the one after them. Returns false if
  // they are others.
  bool read(std::initializer_list<dart::Matrix*> matrices, std::size_t& at) {
    for (dart::Matrix* matrix : matrices) {
      if (matrix_ == counts_.size() || matrix_ == ins_.size()) return false;
      matrix->in = static_cast<std::size_t>(ins_[matrix_]);
      for (std::int32_t left = counts_[matrix_++]; left > 0; --left, ++part_, ++at) {
        if (at >= arguments_.size() || part_ == types_.size() || part_ == outs_.size()) return false;
        const auto part = arguments_.get<xla::ffi::AnyBuffer>(at);
        const auto type = static_cast<dart::WeightType>(types_[part_]);
        const auto out = static_cast<std::size_t>(outs_[part_]);
        if (!part || !has_tiles(*part, type, matrix->in, out)) return false;
        matrix->parts.push_back({part->untyped_data(), type, out});
        matrix->out += out;
      }
    }
    return true;
  }

 private:
  const xla::ffi::RemainingArgs& arguments_;
  const xla::ffi::Span<const std::int32_t> counts_;
  const xla::ffi::Span<const std::int64_t> ins_;
  const xla::ffi::Span<const std::int32_t> types_;
  const xla::ffi::Span<const std::int64_t> outs_;
  std::size_t matrix_ = 0, part_ = 0;  // the next ones
};

// Reads matrices that are all of the arguments that remain.
inline bool read_matrices(const xla::ffi::RemainingArgs& tiles,
                          xla::ffi::Span<const std::int32_t> counts,
                          xla::ffi::Span<const std::int64_t> ins,
                          xla::ffi::Span<const std::int32_t> types,
                          xla::ffi::Span<const std::int64_t> outs,
                          std::initializer_list<dart::Matrix*> matrices) {
  std::size_t at = 0;
  return MatrixReader(tiles, counts, ins, types, outs).read(matrices, at) && at == tiles.size();
}

inline dart::Activation activation_of(std::string_view name) {
  return name == "gelu" ? dart::Activation::kGelu : dart::Activation::kSilu;
}
