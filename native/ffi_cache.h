// Cached keys and values among the arguments of foreign functions.
#pragma once

#include <cstddef>

#include "dart/attention.h"
#include "ffi_shapes.h"
#include "xla/ffi/api/ffi.h"

// True if an array has as many axes as keys and values, and a dtype that they may have.
inline bool has_rows(const xla::ffi::AnyBuffer& array) {
  const auto type = array.element_type();
  return array.dimensions().size() == 4 && (type == xla::ffi::F32 || type == xla::ffi::BF16);
}

// Reads the cache of an attention whose numbers of sequences, key heads and their elements are
// known; `pages` is one-dimensional where sequences have no pages. Returns false if it is another's.
inline bool read_cache(const xla::ffi::AnyBuffer& k, const xla::ffi::AnyBuffer& v,
                       const xla::ffi::Buffer<xla::ffi::S32>& length,
                       const xla::ffi::Buffer<xla::ffi::S32>& pages, dart::Attention& attention) {
  if (!has_rows(k) || !has_rows(v) || v.element_type() != k.element_type()) return false;
  const auto shape = k.dimensions(), table = pages.dimensions();
  const bool paged = table.size() == 2;
  const std::size_t count = size(shape[0]), rows = size(shape[2]), sequences = attention.sequences;
  if ((!paged && count != sequences) || (paged && size(table[0]) != sequences) ||
      !is(shape, count, attention.kv_heads, rows, attention.head_size) ||
      !is(v.dimensions(), count, attention.kv_heads, rows, attention.head_size) ||
      !is(length.dimensions(), sequences)) {
    return false;
  }
  attention.k = k.untyped_data();
  attention.v = v.untyped_data();
  attention.bfloat16 = k.element_type() == xla::ffi::BF16;
  attention.length = length.typed_data();
  attention.pages = {paged ? pages.typed_data() : nullptr, count, rows, paged ? size(table[1]) : 1};
  return true;
}
