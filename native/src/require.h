// Conditions that arguments and files must meet.
#pragma once

#include <stdexcept>

namespace dart {

inline void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

}  // namespace dart
