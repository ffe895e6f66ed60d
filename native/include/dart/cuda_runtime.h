// The few functions of the CUDA runtime that the search uses, loaded while the program runs. So the
// core is built without CUDA, and one build serves every version.
#pragma once

#include <cstddef>
#include <string>

namespace dart {

// As in cuda_runtime_api.h; these have had the same types since CUDA 10. A stream is an opaque
// pointer, an error code an int, 0 for success.
struct CudaRuntime {
  static constexpr int kHostToDevice = 1;   // cudaMemcpyHostToDevice
  static constexpr int kDeviceToHost = 2;   // cudaMemcpyDeviceToHost
  static constexpr unsigned kPortable = 1;  // cudaHostAllocPortable: for every device

  int (*host_alloc)(void** memory, std::size_t bytes, unsigned flags);
  int (*memcpy_async)(void* to, const void* from, std::size_t bytes, int kind, void* stream);
  int (*launch_host_func)(void* stream, void (*function)(void*), void* data);
  const char* (*get_error_string)(int error);
};

// Loads the runtime from a shared library, once for the process: the same path again does nothing.
// Throws std::runtime_error if it cannot be loaded or lacks a function (another may be tried then),
// and std::invalid_argument if another one has been loaded: streams and memory belong to one.
void load_cuda_runtime(const std::string& path);

// The runtime that was loaded, or null.
const CudaRuntime* cuda_runtime();

}  // namespace dart
