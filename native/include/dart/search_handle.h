// Small numbers that stand for tree searches inside compiled programs.
//
// A program that held a search's address would be useless to another process and dangerous once the
// search is gone. A handle is an argument of the program instead, and is looked up at every call.
#pragma once

#include <cstdint>
#include <functional>

#include "dart/tree_search.h"

namespace dart {

// Gives a search its handle, never used again, for as long as this object lives. The end waits for
// calls in progress.
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

// Calls `use` with the search, which cannot go away meanwhile. False if no search has this handle.
bool with_search(std::int32_t handle, const std::function<void(const TreeSearch&)>& use);

}  // namespace dart
