// What may happen to an n-gram file, whatever its bytes.
#pragma once

#include <cstdint>
#include <vector>

namespace dart {

// Makes the bytes agree with all that a reader compares them with, checksums and sizes above all,
// so that what is behind these checks sees them. False if the file would be too large to try.
bool repair(std::vector<std::uint8_t>* file);

// Opens the bytes as an n-gram file and reads it in every way there is. Whatever it holds must give
// a result or std::invalid_argument; ends the program if a result contradicts itself.
void exercise(const std::vector<std::uint8_t>& file);

}  // namespace dart
