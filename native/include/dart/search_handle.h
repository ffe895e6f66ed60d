// Integer handles of tree searches, for use in compiled programs.
//
// A program with a search's address compiled in would be useless to other processes and dangerous
// once the search is destroyed. Instead, the program takes a handle as an argument and looks it up
// at every call.
#pragma once

#include <cstdint>
#include <functional>

#include "dart/tree_search.h"

namespace dart {

// Assigns a search a handle for the lifetime of this object. Handles are never reused. The
// destructor waits for calls in progress.
class SearchHandle {
 public:
  explicit SearchHandle(const TreeSearch& search);
  ~SearchHandle();
  SearchHandle(const SearchHandle&) = delete;
  SearchHandle& operator=(const SearchHandle&) = delete;

  std::int32_t value() const { return value_; }

 private:
  std::int32_t value_;
};

// Calls `use` with the search, which is not destroyed meanwhile. Returns false if no search has
// this handle.
bool with_search(std::int32_t handle, const std::function<void(const TreeSearch&)>& use);

}  // namespace dart
