// Rows that are kept or compared, as XLA foreign functions on the CPU.
//
// XLA divides such small operations among threads, and waits longer for these than they take.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dart/rows.h"
#include "ffi_handlers.h"
#include "ffi_cache.h"
#include "ffi_used.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

// See dart::largest: x [.., size] -> values and indices [.., count]. `used` says how many rows are
// computed, if it has an element: what follows them is not written.
ffi::Error largest(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> used,
                   ffi::Result<ffi::Buffer<ffi::F32>> values,
                   ffi::Result<ffi::Buffer<ffi::S32>> indices) {
  const auto shape = x.dimensions(), found = values->dimensions();
  if (shape.size() == 0 || found.size() != shape.size() || found.back() > shape.back() ||
      values->element_count() != indices->element_count()) {
    return ffi::Error::InvalidArgument("dart_largest: arguments of other shapes");
  }
  const auto size = static_cast<std::size_t>(shape.back());
  const auto count = static_cast<std::size_t>(found.back());
  if (size == 0 || count == 0) return ffi::Error::Success();
  const std::size_t rows = x.element_count() / size;
  if (values->element_count() != rows * count) {
    return ffi::Error::InvalidArgument("dart_largest: arguments of other shapes");
  }
  dart::largest(x.typed_data(), used_rows(used, rows), size, count, values->typed_data(),
                indices->typed_data(), dart::best_instructions(),
                static_cast<std::size_t>(pool.num_threads()));
  return ffi::Error::Success();
}

// See dart::KeptRows. The arguments that remain are caches [B, K, S, h], or in pages [P, K, R, h], of
// keys and of values in turn, and then, in the same order, new rows [B, K, T, h]; the results are the
// caches, written in place.
// `pages` is one-dimensional where sequences have no pages. If `used` has an element, there is one
// sequence, and only that many of its rows are kept: another text may have the rows after them.
ffi::Error append(ffi::BufferR2<ffi::S32> index, ffi::BufferR1<ffi::S32> length,
                  ffi::Buffer<ffi::S32> pages, ffi::Buffer<ffi::S32> used,
                  ffi::RemainingArgs arrays, ffi::RemainingRets caches) {
  const std::int64_t b = index.dimensions()[0], room = index.dimensions()[1];
  const auto table = pages.dimensions();
  const bool paged = table.size() == 2;
  if (arrays.size() != 2 * caches.size() || length.dimensions()[0] != b ||
      (paged && table[0] != b)) {
    return ffi::Error::InvalidArgument("dart_append: caches and rows of different numbers");
  }
  const std::size_t kept = used_rows(used, size(room));
  if (kept < size(room) && b != 1) {
    return ffi::Error::InvalidArgument("dart_append: several sequences");
  }
  for (std::size_t i = 0; i < caches.size(); ++i) {
    const auto old = arrays.get<ffi::AnyBuffer>(i);
    const auto rows = arrays.get<ffi::AnyBuffer>(caches.size() + i);
    auto cache = caches.get<ffi::AnyBuffer>(i);
    if (!old || !rows || !cache) return ffi::Error::InvalidArgument("dart_append: no array");
    const auto there = (*cache)->dimensions(), here = rows->dimensions();
    if (old->untyped_data() != (*cache)->untyped_data()) {
      return ffi::Error::InvalidArgument("dart_append: a cache that is not written in place");
    }
    if (!has_rows(*rows) || there.size() != 4 || here[0] != b || here[1] != there[1] ||
        here[3] != there[3] || here[2] < 1 || rows->element_type() != (*cache)->element_type() ||
        (!paged && (there[0] != b || room > there[2]))) {
      return ffi::Error::InvalidArgument("dart_append: caches and rows of different shapes");
    }
    if (rows->element_count() == 0) continue;
    dart::KeptRows written;
    written.rows = rows->untyped_data();
    written.cache = (*cache)->untyped_data();
    written.keys = i % 2 == 0;
    written.bfloat16 = rows->element_type() == ffi::BF16;
    written.index = index.typed_data();
    written.length = length.typed_data();
    written.pages = {paged ? pages.typed_data() : nullptr, size(there[0]), size(there[2]),
                     paged ? size(table[1]) : 1};
    written.sequences = size(b);
    written.kv_heads = size(there[1]);
    written.new_rows = size(here[2]);
    written.kept = kept;
    written.head_size = size(here[3]);
    dart::append(written);
  }
  return ffi::Error::Success();
}

// Copies page `from` of every pool to page `to`; the results are the pools, written in place.
ffi::Error copy_page(ffi::BufferR1<ffi::S32> from, ffi::BufferR1<ffi::S32> to,
                     ffi::RemainingArgs arrays, ffi::RemainingRets pools) {
  for (std::size_t i = 0; i < pools.size(); ++i) {
    const auto old = arrays.get<ffi::AnyBuffer>(i);
    auto pool = pools.get<ffi::AnyBuffer>(i);
    if (arrays.size() != pools.size() || !old || !pool ||
        old->untyped_data() != (*pool)->untyped_data()) {
      return ffi::Error::InvalidArgument("dart_copy_page: a pool that is not written in place");
    }
    const std::int64_t count = (*pool)->dimensions()[0], source = *from.typed_data();
    const std::int64_t target = *to.typed_data();
    if (source < 0 || source >= count || target < 0 || target >= count) continue;
    dart::copy_page(static_cast<char*>((*pool)->untyped_data()),
                    (*pool)->size_bytes() / size(count), size(source), size(target));
  }
  return ffi::Error::Success();
}

// Results of any shapes and dtypes, which hold anything. Those that XLA has from the system's unused
// memory take none until they are written.
ffi::Error unwritten(ffi::RemainingRets) { return ffi::Error::Success(); }

}  // namespace

DART_FFI_HANDLER(dart_largest, largest);
DART_FFI_HANDLER(dart_append, append);
DART_FFI_HANDLER(dart_copy_page, copy_page);
DART_FFI_HANDLER(dart_unwritten, unwritten);
