#include "dart/cuda_runtime.h"

#include <stdexcept>
#include <string>

#include "check.h"
#include "dart/cuda_search.h"
#include "stub_cuda_runtime.h"

namespace {

// What loading a path reports: one line.
template <class Error>
std::string refusal(const std::string& path) {
  std::string message;
  try {
    dart::load_cuda_runtime(path);
  } catch (const Error& error) {
    message = error.what();
  }
  CHECK(!message.empty() && message.find('\n') == std::string::npos);
  return message;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void test_without_a_runtime() {
  CHECK(dart::cuda_runtime() == nullptr);
  CHECK_THROWS(dart::enqueue_search(nullptr, 0, {}), std::runtime_error);
  CHECK(!dart::take_search_error(0));
}

void test_unusable_libraries() {
  CHECK(contains(refusal<std::runtime_error>("/nowhere/libcudart.so.13"), "libcudart.so.13"));
  CHECK(contains(refusal<std::runtime_error>(""), "empty"));
#ifdef __linux__
  CHECK(contains(refusal<std::runtime_error>("libm.so.6"), "libm.so.6 lacks cudaHostAlloc"));
#endif
  CHECK(dart::cuda_runtime() == nullptr);
}

void test_loading() {
  dart::load_cuda_runtime(DART_STUB_CUDA_RUNTIME);
  const dart::CudaRuntime* loaded = dart::cuda_runtime();
  CHECK(loaded != nullptr && std::string(loaded->get_error_string(2)) == stub::kError);
  dart::load_cuda_runtime(DART_STUB_CUDA_RUNTIME);
  CHECK(dart::cuda_runtime() == loaded);
  CHECK(contains(refusal<std::invalid_argument>("/nowhere/libcudart.so.13"), "already loaded"));
  CHECK(dart::cuda_runtime() == loaded);
}

}  // namespace

int main() {
  test_without_a_runtime();
  test_unusable_libraries();
  test_loading();
  return failures == 0 ? 0 : 1;
}
