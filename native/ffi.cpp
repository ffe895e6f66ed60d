// The tree search as an XLA foreign function on the CPU: jitted programs call it without Python.
#include "ffi.h"

#include <cstdint>
#include <exception>

#include "dart/search_handle.h"
#include "dart/tree_search.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

// Reads the packed array of dart_jax/decoding/search/pruner.py in place.
//
// `handle` identifies a search (dart/search_handle.h). Attributes: `first`, the column where the
// candidates begin; `context`, the number of context tokens, which end before that column; `levels`
// and `candidates`, the candidates' d and k; `pairs`, the number of pair scores, (d - 1) * k * k or 0;
// `draws`, 3 if the last columns say how the target draws, otherwise 0.
ffi::Error search(ffi::BufferR0<ffi::S32> handle, ffi::Buffer<ffi::S32> packed,
                  ffi::Result<ffi::Buffer<ffi::S32>> trees, std::int64_t context, std::int64_t first,
                  std::int64_t levels, std::int64_t candidates, std::int64_t pairs,
                  std::int64_t draws) {
  const auto shape = packed.dimensions();
  const std::int64_t size = levels * candidates;
  if (shape.size() != 2 || levels < 0 || candidates < 0 || context < 1 || first < context ||
      (pairs != 0 && pairs != (levels - 1) * candidates * candidates) ||
      (draws != 0 && draws != 3) || shape[1] != first + 2 * size + pairs + draws) {
    return ffi::Error::InvalidArgument("dart_search: packed candidates of another layout");
  }
  const std::int32_t* row = packed.typed_data();
  dart::DraftBatch batch;
  batch.rows = static_cast<std::size_t>(shape[0]);
  batch.context = static_cast<std::size_t>(context);
  batch.levels = static_cast<std::size_t>(levels);
  batch.candidates = static_cast<std::size_t>(candidates);
  batch.context_tokens = row + first - context;
  batch.tokens = row + first;
  batch.logits = reinterpret_cast<const float*>(row + first + size);
  if (pairs != 0) batch.pairs = reinterpret_cast<const float*>(row + first + 2 * size);
  if (draws != 0) batch.draws = row + first + 2 * size + pairs;
  batch.context_stride = batch.tokens_stride = batch.logits_stride = batch.pairs_stride =
      batch.draws_stride = static_cast<std::size_t>(shape[1]);
  const auto out = trees->dimensions();
  bool fits = out.size() == 3 && out[0] == shape[0] && out[1] == 3;
  try {
    const bool found = dart::with_search(*handle.typed_data(), [&](const dart::TreeSearch& search) {
      fits = fits && out[2] == std::int64_t{search.config().nodes} + 1;
      if (fits) search.search(batch, trees->typed_data());
    });
    if (!found) return ffi::Error::InvalidArgument("dart_search: the search no longer exists");
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  }
  if (!fits) return ffi::Error::InvalidArgument("dart_search: trees of another size");
  return ffi::Error::Success();
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
