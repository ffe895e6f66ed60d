// The search as an XLA foreign function on the CPU.
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "dart/tree_search.h"
#include "ffi_handlers.h"
#include "ffi_shapes.h"

namespace {

namespace ffi = xla::ffi;

// A search's handle and its drafts -> trees; see dart::TreeSearch and dart::DraftBatch.
ffi::Error search(ffi::BufferR0<ffi::S32> handle, ffi::BufferR2<ffi::S32> packed,
                  ffi::Result<ffi::BufferR3<ffi::S32>> trees, std::int64_t context,
                  std::int64_t levels, std::int64_t candidates, bool pairs, bool draws) {
  const auto shape = packed.dimensions();
  const dart::DraftBatch batch{packed.typed_data(), size(shape[0]),   size(context), size(levels),
                               size(candidates),    pairs, draws};
  if (context < 1 || levels < 0 || candidates < 0 || size(shape[1]) != batch.width()) {
    return ffi::Error::InvalidArgument("dart_search: packed candidates of another layout");
  }
  dart::TreeSearch::with(*handle.typed_data(), [&](const dart::TreeSearch& search) {
    if (!is(trees->dimensions(), batch.rows, dart::kTreeRows, size(search.config().nodes) + 1)) {
      throw std::invalid_argument("dart_search: trees of another size");
    }
    search.search(batch, trees->typed_data());
  });
  return ffi::Error::Success();
}

}  // namespace

DART_FFI_HANDLER(dart_search, search, "context", "levels", "candidates", "pairs", "draws");
