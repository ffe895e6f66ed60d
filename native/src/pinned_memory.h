// Host memory that a GPU can copy from and to while nobody waits ("pinned").
//
// It is slow to allocate and never given back to the system: blocks are reused. Their sizes are powers
// of two, so less than half of a block is unused, and there are no more blocks of a size than were in
// use at the same time.
#pragma once

#include <cstddef>

#include "dart/cuda_runtime.h"

namespace dart {

// A block's first bytes; what it is used for follows it.
struct alignas(64) PinnedBlock {
  std::size_t size_class;  // it has 2 ** size_class bytes, these included
  PinnedBlock* next;       // among unused blocks
};

// Throws std::runtime_error, with the runtime's message, if what the runtime returned is an error.
void check_cuda(const CudaRuntime& cuda, int error);

// Takes a block with at least this many bytes after its first ones. Throws std::runtime_error if there
// is no memory. Safe to call from several threads at once.
PinnedBlock* take_pinned(const CudaRuntime& cuda, std::size_t bytes);

// Throws nothing and calls nothing of CUDA, so that a stream's host function may call it.
void reuse_pinned(PinnedBlock* block) noexcept;

}  // namespace dart
