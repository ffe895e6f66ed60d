// The tree search as an XLA foreign function on NVIDIA GPUs. It enqueues the search in the program's
// stream and returns: nobody waits for the device, and Python is not called.
//
// Not to be recorded in a command buffer: a recording would replay one call's memory and run id.
#include "ffi.h"

#include <cstdint>

#include "dart/cuda_search.h"
#include "ffi_search.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

ffi::Error search(ffi::BufferR0<ffi::S32> handle, ffi::Buffer<ffi::S32> packed,
                  ffi::Result<ffi::Buffer<ffi::S32>> trees, std::int64_t context, std::int64_t first,
                  std::int64_t levels, std::int64_t candidates, std::int64_t pairs,
                  std::int64_t draws, void* stream, ffi::RunId run) {
  return error_of([&] {
    dart::CudaSearch call;
    call.layout = packed_layout(packed, context, first, levels, candidates, pairs, draws);
    call.nodes = nodes_of(*trees, call.layout.rows);
    call.handle = handle.typed_data();
    call.packed = packed.typed_data();
    call.trees = trees->typed_data();
    dart::enqueue_search(stream, run.run_id, call);
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    dart_search_cuda, search,
    search_binding().Ctx<ffi::PlatformStream<void*>>().Ctx<ffi::RunId>());

void* dart_search_cuda_handler() { return reinterpret_cast<void*>(dart_search_cuda); }
