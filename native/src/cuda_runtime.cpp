#include "dart/cuda_runtime.h"

#include <atomic>
#include <mutex>
#include <stdexcept>

#if __has_include(<dlfcn.h>)
#include <dlfcn.h>
#endif

namespace dart {
namespace {

#if __has_include(<dlfcn.h>)

template <class Function>
void find(void* library, const std::string& path, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(library, name));
  if (*function == nullptr) throw std::runtime_error("no CUDA runtime: " + path + " lacks " + name);
}

CudaRuntime load(const std::string& path) {
  // dlopen would take an empty path for the program itself.
  if (path.empty()) throw std::runtime_error("no CUDA runtime: the path is empty");
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw std::runtime_error("no CUDA runtime: " + (reason == nullptr ? path : reason));
  }
  try {
    CudaRuntime runtime;
    find(library, path, "cudaHostAlloc", &runtime.host_alloc);
    find(library, path, "cudaMemcpyAsync", &runtime.memcpy_async);
    find(library, path, "cudaLaunchHostFunc", &runtime.launch_host_func);
    find(library, path, "cudaGetErrorString", &runtime.get_error_string);
    return runtime;
  } catch (...) {
    dlclose(library);
    throw;
  }
}

#else

CudaRuntime load(const std::string& path) {
  throw std::runtime_error("no CUDA runtime: " + path + " cannot be loaded on this system");
}

#endif

// Never destroyed: a program may still be running while the process exits.
std::atomic<const CudaRuntime*> current{nullptr};

}  // namespace

void load_cuda_runtime(const std::string& path) {
  static std::mutex& mutex = *new std::mutex;
  static std::string& loaded = *new std::string;
  const std::lock_guard lock(mutex);
  if (current != nullptr) {
    if (path == loaded) return;
    throw std::invalid_argument("a CUDA runtime was already loaded, from " + loaded);
  }
  const CudaRuntime runtime = load(path);
  loaded = path;
  current = new CudaRuntime(runtime);
}

const CudaRuntime* cuda_runtime() { return current; }

}  // namespace dart
