#include "pinned_memory.h"

#include <array>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>

namespace dart {
namespace {

constexpr std::size_t kSmallest = 12;  // a page
constexpr std::size_t kClasses = 64;

struct Pool {
  std::mutex mutex;
  std::array<PinnedBlock*, kClasses> unused{};
};

// Never destroyed: a stream may still be running while the process exits.
Pool& pool() {
  static Pool& pool = *new Pool;
  return pool;
}

}  // namespace

void check_cuda(const CudaRuntime& cuda, int error) {
  if (error != 0) {
    throw std::runtime_error(std::string("dart_search: CUDA: ") + cuda.get_error_string(error));
  }
}

PinnedBlock* take_pinned(const CudaRuntime& cuda, std::size_t bytes) {
  std::size_t size_class = kSmallest;
  while ((std::size_t{1} << size_class) - sizeof(PinnedBlock) < bytes) ++size_class;
  {
    const std::lock_guard lock(pool().mutex);
    PinnedBlock*& unused = pool().unused[size_class];
    if (unused != nullptr) {
      PinnedBlock* block = unused;
      unused = block->next;
      return block;
    }
  }
  // Without the lock: the driver may let the allocation wait for a host function, which takes it.
  void* memory = nullptr;
  check_cuda(cuda, cuda.host_alloc(&memory, std::size_t{1} << size_class, CudaRuntime::kPortable));
  return new (memory) PinnedBlock{size_class, nullptr};
}

void reuse_pinned(PinnedBlock* block) noexcept {
  const std::lock_guard lock(pool().mutex);
  block->next = pool().unused[block->size_class];
  pool().unused[block->size_class] = block;
}

}  // namespace dart
