// The tree search as an XLA foreign function on the CPU: jitted programs call it without Python.
#include "ffi.h"

#include <cstdint>

#include "dart/packed_search.h"
#include "dart/stopwatch.h"
#include "ffi_search.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

ffi::Error search(ffi::BufferR0<ffi::S32> handle, ffi::Buffer<ffi::S32> packed,
                  ffi::Result<ffi::Buffer<ffi::S32>> trees, std::int64_t context, std::int64_t first,
                  std::int64_t levels, std::int64_t candidates, std::int64_t pairs,
                  std::int64_t draws) {
  const dart::Timed timed(dart::Part::kSearch);
  return error_of([&] {
    const dart::PackedLayout layout =
        packed_layout(packed, context, first, levels, candidates, pairs, draws);
    dart::search_packed(*handle.typed_data(), layout, packed.typed_data(),
                        nodes_of(*trees, layout.rows), trees->typed_data());
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(dart_search, search, search_binding());

void* dart_search_handler() { return reinterpret_cast<void*>(dart_search); }
