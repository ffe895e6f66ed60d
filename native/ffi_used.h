// Programs with room for more rows than there are: an argument says how many are computed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "xla/ffi/api/ffi.h"

// Rows to compute of those that there is room for: all, if the argument has no element.
inline std::size_t used_rows(const xla::ffi::Buffer<xla::ffi::S32>& used, std::size_t room) {
  if (used.element_count() == 0) return room;
  const std::int32_t count = *used.typed_data();
  return count < 0 ? 0 : std::min(static_cast<std::size_t>(count), room);
}

// Copies the first `kept` of every `each` bytes.
inline std::vector<char> first_of_each(const void* from, std::size_t parts, std::size_t each,
                                       std::size_t kept) {
  std::vector<char> to(parts * kept);
  for (std::size_t i = 0; i < parts; ++i) {
    std::memcpy(to.data() + i * kept, static_cast<const char*>(from) + i * each, kept);
  }
  return to;
}
