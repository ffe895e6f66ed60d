#include "dart/cuda_search.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <new>
#include <stdexcept>

#include "dart/cuda_runtime.h"
#include "pinned_memory.h"
#include "search_errors.h"

namespace dart {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// A search in a stream, in pinned memory: the numbers that its host functions need, then the arrays
// that the device copies from and to.
struct alignas(kAlignment) Job {
  PinnedBlock* block;
  std::int64_t run;
  PackedLayout layout;
  std::int64_t nodes;
  std::int32_t* packed;
  std::int32_t* trees;
  std::int32_t handle;

  std::size_t packed_bytes() const { return bytes(layout.rows * layout.width); }
  std::size_t trees_bytes() const { return bytes(trees_size()); }
  std::int64_t trees_size() const { return layout.rows * kTreeRows * (nodes + 1); }

 private:
  static std::size_t bytes(std::int64_t numbers) {
    return static_cast<std::size_t>(numbers) * sizeof(std::int32_t);
  }
};

Job* make_job(const CudaRuntime& cuda, std::int64_t run, const CudaSearch& search) {
  Job job{nullptr, run, search.layout, search.nodes, nullptr, nullptr, 0};
  const std::size_t packed = sizeof(Job), trees = packed + aligned(job.packed_bytes());
  job.block = take_pinned(cuda, trees + job.trees_bytes());
  char* memory = reinterpret_cast<char*>(job.block + 1);
  job.packed = reinterpret_cast<std::int32_t*>(memory + packed);
  job.trees = reinterpret_cast<std::int32_t*>(memory + trees);
  return new (memory) Job(job);
}

// The stream's host functions. They must not call CUDA, and no exception may leave them.

void run_search(void* data) noexcept {
  Job& job = *static_cast<Job*>(data);
  try {
    search_packed(job.handle, job.layout, job.packed, job.nodes, job.trees);
    return;
  } catch (const std::exception& error) {
    keep_search_error(job.run, job.handle, error.what());
  } catch (...) {
    keep_search_error(job.run, job.handle, "dart_search: unknown error");
  }
  std::fill_n(job.trees, job.trees_size(), 0);
}

void end_job(void* data) noexcept { reuse_pinned(static_cast<Job*>(data)->block); }

}  // namespace

void enqueue_search(void* stream, std::int64_t run, const CudaSearch& search) {
  const CudaRuntime* cuda = cuda_runtime();
  if (cuda == nullptr) throw std::runtime_error("dart_search: no CUDA runtime was loaded");
  prepare_search_errors();
  if (const auto error = take_run_error(run)) throw std::runtime_error(*error);
  if (search.layout.rows == 0) return;
  Job* job = make_job(*cuda, run, search);
  const auto copy = [&](void* to, const void* from, std::size_t bytes, int kind) {
    check_cuda(*cuda, cuda->memcpy_async(to, from, bytes, kind, stream));
  };
  try {
    copy(&job->handle, search.handle, sizeof(job->handle), CudaRuntime::kDeviceToHost);
    copy(job->packed, search.packed, job->packed_bytes(), CudaRuntime::kDeviceToHost);
    check_cuda(*cuda, cuda->launch_host_func(stream, run_search, job));
    copy(search.trees, job->trees, job->trees_bytes(), CudaRuntime::kHostToDevice);
    check_cuda(*cuda, cuda->launch_host_func(stream, end_job, job));
  } catch (...) {
    // Work enqueued before the failure still uses the job. If this cannot be enqueued either,
    // nobody will ever know when that is over, and the memory is never used again.
    cuda->launch_host_func(stream, end_job, job);
    throw;
  }
}

}  // namespace dart
