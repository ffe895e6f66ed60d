#include "search_errors.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "dart/cuda_search.h"

namespace dart {
namespace {

struct Error {
  std::int64_t run;
  std::int32_t handle;
  std::string message;
};

struct List {
  List() { errors.reserve(kSearchErrors); }
  std::mutex mutex;
  std::vector<Error> errors;  // oldest first
};

// Never destroyed: a stream may still be running while the process exits.
List& list() {
  static List& list = *new List;
  return list;
}

template <class Matches>
std::optional<std::string> take(const Matches& matches) {
  const std::lock_guard lock(list().mutex);
  auto& errors = list().errors;
  const auto found = std::find_if(errors.begin(), errors.end(), matches);
  if (found == errors.end()) return std::nullopt;
  const std::int64_t run = found->run;
  std::string message = std::move(found->message);
  errors.erase(std::remove_if(errors.begin(), errors.end(),
                              [&](const Error& error) { return error.run == run; }),
               errors.end());
  return message;
}

}  // namespace

void prepare_search_errors() { list(); }

void keep_search_error(std::int64_t run, std::int32_t handle, const char* message) noexcept {
  Error error{run, handle, {}};
  try {
    error.message = message;
  } catch (...) {
    error.message = "out of memory";  // so short that it needs none
  }
  const std::lock_guard lock(list().mutex);
  auto& errors = list().errors;
  if (errors.size() == kSearchErrors) errors.erase(errors.begin());
  errors.push_back(std::move(error));
}

std::optional<std::string> take_run_error(std::int64_t run) {
  return take([&](const Error& error) { return error.run == run; });
}

std::optional<std::string> take_search_error(std::int32_t handle) {
  return take([&](const Error& error) { return error.handle == handle; });
}

}  // namespace dart
