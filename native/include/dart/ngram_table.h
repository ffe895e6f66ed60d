// An n-gram model as a table for devices (dart_jax/ngram/device_table.py), looked up on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dart {

// `DeviceTable`, whose docstring describes the arrays.
struct NgramTable {
  const std::int32_t* sections;  // [lengths, 4]
  std::size_t lengths;           // order - 1
  const std::uint16_t* seeds;    // [seed_count]
  std::size_t seed_count;
  const std::uint8_t* prints;    // [entry_count]
  const std::int32_t* entries;   // [entry_count, 3]
  std::size_t entry_count;
};

// Tokens after contexts: those of row b after each of its W contexts.
struct TableLookups {
  const std::int32_t* known;   // [B, W, lengths]: what identifies the last 1, 2, .. tokens, or -1
  const std::int32_t* tokens;  // [B, k]
  const bool* wanted;          // [B, W, k]: what is found of others is undefined
  std::size_t rows;            // B
  std::size_t contexts;        // W
  std::size_t candidates;      // k
  float unseen;                // log(0 + eps)
  float* log_q;                // [B, W, k], of the longest n-gram that was counted
  std::int32_t* places;        // [lengths - 1, B, W, k], of all but the longest n-grams, or -1
};

// Looks them up in this thread and in at most `threads - 1` others, fewer if there is little.
// Reads nothing outside the table's arrays, whatever they hold; needs seeds and entries.
void look_up(const NgramTable& table, const TableLookups& lookups, std::size_t threads);

}  // namespace dart
