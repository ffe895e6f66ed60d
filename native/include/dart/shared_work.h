// Work that a thread shares with others.
#pragma once

#include <cstddef>
#include <functional>

namespace dart {

// Work, or memory to read, that a thread must have to itself: a few microseconds on an EPYC of
// 2024. With less it costs more to call the thread than it computes meanwhile.
constexpr std::size_t kOperationsPerThread = 1 << 18;
constexpr std::size_t kBytesPerThread = 128 * 1024;

// Calls `compute` for each of `chunks` chunks, in this thread and in at most `threads - 1` others;
// those that are busy are not waited for. Tiny numbers are rounded to 0 in all threads or in none,
// as in this one.
void share(std::size_t chunks, std::size_t threads,
           const std::function<void(std::size_t)>& compute);

// Calls `compute` for parts of rows 0 to `rows`, with a part's first row and the one after its last.
// Uses at most `threads` threads, fewer if all rows need few operations. There are some more parts
// than threads, so that one that comes late does not hold up the others.
void share_rows(std::size_t rows, std::size_t operations, std::size_t threads,
                const std::function<void(std::size_t, std::size_t)>& compute);

}  // namespace dart
