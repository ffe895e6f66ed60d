// Exercises all readers of n-gram files on arbitrary bytes.
#pragma once

#include <cstdint>
#include <vector>

namespace dart {

// Makes checksums, sizes and other header fields consistent, so that the bytes get past the header
// checks. Returns false if the file would be too large to try.
bool repair(std::vector<std::uint8_t>* file);

// Opens the bytes as an n-gram file and calls every reader. Each must return a result or throw
// std::invalid_argument; aborts if results contradict each other.
void exercise(const std::vector<std::uint8_t>& file);

}  // namespace dart
