// The tree search as an XLA foreign function on the CPU: jitted programs call it without Python.
#include "ffi.h"

#include <cstdint>
#include <stdexcept>

#include "dart/packed_search.h"
#include "dart/stopwatch.h"
#include "dart/tree_search.h"
#include "ffi_errors.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

// A search's handle (dart/search_handle.h), the packed array, and the trees to write; then the
// layout of the packed array (dart/packed_search.h).
ffi::Error search(ffi::BufferR0<ffi::S32> handle, ffi::Buffer<ffi::S32> packed,
                  ffi::Result<ffi::Buffer<ffi::S32>> trees, std::int64_t context, std::int64_t first,
                  std::int64_t levels, std::int64_t candidates, std::int64_t pairs,
                  std::int64_t draws) {
  const dart::Timed timed(dart::Part::kSearch);
  return error_of([&] {
    dart::PackedLayout layout;
    const auto from = packed.dimensions(), to = trees->dimensions();
    if (from.size() == 2) {
      layout = {from[0], from[1], context, first, levels, candidates, pairs, draws};
    }
    if (!layout.valid()) {
      throw std::invalid_argument("dart_search: packed candidates of another layout");
    }
    if (to.size() != 3 || to[0] != layout.rows || to[1] != dart::kTreeRows || to[2] < 1) {
      throw std::invalid_argument("dart_search: trees of another size");
    }
    dart::search_packed(*handle.typed_data(), layout, packed.typed_data(), to[2] - 1,
                        trees->typed_data());
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(dart_search, search,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR0<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Attr<std::int64_t>("context")
                                  .Attr<std::int64_t>("first")
                                  .Attr<std::int64_t>("levels")
                                  .Attr<std::int64_t>("candidates")
                                  .Attr<std::int64_t>("pairs")
                                  .Attr<std::int64_t>("draws"));

void* dart_search_handler() { return reinterpret_cast<void*>(dart_search); }
