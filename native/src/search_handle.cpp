#include "dart/search_handle.h"

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace dart {
namespace {

struct Table {
  std::shared_mutex mutex;
  std::unordered_map<std::int32_t, const TreeSearch*> searches;
  std::int32_t next = 0;
};

// Never destroyed: a program may still be running while the process exits.
Table& table() {
  static Table& table = *new Table;
  return table;
}

}  // namespace

SearchHandle::SearchHandle(const TreeSearch& search) {
  const std::unique_lock lock(table().mutex);
  value_ = table().next++;
  table().searches.emplace(value_, &search);
}

SearchHandle::~SearchHandle() {
  const std::unique_lock lock(table().mutex);
  table().searches.erase(value_);
}

bool with_search(std::int32_t handle, const std::function<void(const TreeSearch&)>& use) {
  const std::shared_lock lock(table().mutex);
  const auto found = table().searches.find(handle);
  if (found == table().searches.end()) return false;
  use(*found->second);
  return true;
}

}  // namespace dart
