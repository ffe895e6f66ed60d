// Errors of searches that ran in a stream, until somebody asks for them.
//
// An execution has one error: the first one. Taking it forgets those of its later searches, which had
// been enqueued before anybody could know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace dart {

// As many are kept; then the oldest one is forgotten.
inline constexpr std::size_t kSearchErrors = 64;

// Makes the list. `keep_search_error` needs no memory for it afterwards.
void prepare_search_errors();

// Keeps the error of a search with this handle in an execution. Throws nothing, so that a stream's
// host function may call it.
void keep_search_error(std::int64_t run, std::int32_t handle, const char* message) noexcept;

// Takes the error of an execution.
std::optional<std::string> take_run_error(std::int64_t run);

}  // namespace dart
