// Work that a thread shares with others.
#pragma once

#include <atomic>
#include <cfenv>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

namespace dart {

// Work, or memory to read, that a thread must have to itself: a few microseconds on an EPYC of
// 2024. With less it costs more to call the thread than it computes meanwhile.
constexpr std::size_t kOperationsPerThread = 1 << 18;
constexpr std::size_t kBytesPerThread = 128 * 1024;

// The same for a thread that is in a team already.
constexpr std::size_t kOperationsInTeam = 1 << 15;
constexpr std::size_t kBytesInTeam = 16 * 1024;

// Memory that follows each other, read once from its beginning to its end.
struct Memory {
  const char* begin;
  std::size_t bytes;
};

// The threads that do some work, one piece after another.
//
// The thread that leads them gives each piece; others take chunks of it when they are there, and are
// not waited for when they are busy elsewhere. Each begins with its own share, neighbouring chunks,
// and goes on with what others have left. Between two pieces they look out for the next one, and
// bring its memory into their caches meanwhile.
class Team {
 public:
  explicit Team(std::size_t threads);
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // The most threads of the team.
  std::size_t threads() const { return threads_; }

  // Calls `compute` for each of `chunks` chunks, fewer than 2^32, and returns when all are done;
  // then rethrows an exception that one of them threw. Called by the leading thread only.
  void share(std::size_t chunks, const std::function<void(std::size_t)>& compute);

  // Tells what the piece after the next one will read, each thread its share; a null `begin` for
  // nothing. Called by the leading thread only.
  void read_ahead(Memory memory);

 private:
  friend void with_team(std::size_t threads, const std::function<void(Team&)>& work);

  // What a thread took of its share, in a line of the cache of its own.
  struct alignas(64) Share {
    std::atomic<std::uint64_t> taken{0};  // the piece's number, in the upper half, and its chunks
  };

  // The memory that a thread brings into its cache while it waits.
  struct Reader;

  void take_chunks(std::size_t thread);
  bool take(std::uint64_t piece, std::size_t thread, std::size_t& chunk);
  void help();

  const std::size_t threads_;
  std::fenv_t environment_;  // the leading thread's
  const std::unique_ptr<Share[]> shares_;
  alignas(64) std::atomic<std::uint64_t> piece_{0};  // its number, in the upper half, and its chunks
  std::atomic<const char*> ahead_{nullptr};
  std::atomic<std::size_t> ahead_bytes_{0};
  std::atomic<bool> over_{false};
  const std::function<void(std::size_t)>* compute_ = nullptr;
  alignas(64) std::atomic<std::size_t> done_{0};
  std::atomic<std::size_t> helpers_{0};
  std::mutex mutex_;  // protects:
  std::exception_ptr failure_;
};

// Calls `work` in this thread, which leads a team of at most `threads`. Tiny numbers are rounded to 0
// in all of its threads or in none, as in this one.
void with_team(std::size_t threads, const std::function<void(Team&)>& work);

// Calls `compute` for each of `chunks` chunks, by a team of at most `threads`.
void share(std::size_t chunks, std::size_t threads,
           const std::function<void(std::size_t)>& compute);

// Calls `compute` for parts of rows 0 to `rows`, with a part's first row and the one after its last,
// by a team, or by one of at most `threads`: fewer if all rows need few operations. There are some
// more parts than threads, so that one that comes late does not delay the others.
void share_rows(std::size_t rows, std::size_t operations, Team& team,
                const std::function<void(std::size_t, std::size_t)>& compute);
void share_rows(std::size_t rows, std::size_t operations, std::size_t threads,
                const std::function<void(std::size_t, std::size_t)>& compute);

}  // namespace dart
