// The search within a stream of an NVIDIA GPU: enqueued like a kernel, run by the host when the
// stream gets there.
//
// Nothing waits for it: neither the thread that enqueues it, nor one stream for another
// (unless the driver runs host functions of several streams one after another, as it may).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dart/packed_search.h"

namespace dart {

// The arrays of a search; all of them are on the device.
struct CudaSearch {
  PackedLayout layout;                    // must be valid
  std::int64_t nodes = 0;                 // nodes of a tree, the root not counted, at least 0
  const std::int32_t* handle = nullptr;   // one number (dart/search_handle.h)
  const std::int32_t* packed = nullptr;   // [rows, width]
  std::int32_t* trees = nullptr;          // [rows, 3, nodes + 1]
};

// Enqueues a search in a stream. `run` says to which execution of a program it belongs.
//
// A search that fails when it runs (its handle is unknown, it makes trees of another size, or it
// throws) cannot report that here. Its trees are then all zeros, and the error is kept: the
// execution's next call throws it instead of enqueueing anything, so that a loop ends at its next
// step. For an error without a next call there is `take_search_error`.
//
// Throws std::runtime_error for such an error of an earlier call, if no CUDA runtime was loaded, or
// with the runtime's own message if it refuses something. Memory of the device may then be written
// until the stream has run what was enqueued before.
void enqueue_search(void* stream, std::int64_t run, const CudaSearch& search);

// Takes the oldest error of a search that no later call has thrown, and forgets further ones of the
// same execution. Of errors that nobody takes, only the newest few are kept.
std::optional<std::string> take_search_error(std::int32_t handle);

}  // namespace dart
