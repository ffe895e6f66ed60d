#include "dart/shared_work.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "thread_pool.h"

namespace dart {
namespace {

constexpr int kHalf = 32;
constexpr std::uint64_t kLower = 0xffffffffu;

// Of a thread's share of what is read next, so much is brought into its second cache.
constexpr std::size_t kMostAhead = 256 * 1024;
constexpr std::size_t kLine = 64;
constexpr std::size_t kLinesAtOnce = 8;

void prefetch(const char* from) { __builtin_prefetch(from, 0, 2); }

}  // namespace

struct Team::Reader {
  const Team& team;
  const std::size_t thread;
  const char* seen = nullptr;  // what is read next, as it was when last looked at
  const char* at = nullptr;
  const char* end = nullptr;

  // Brings in some lines.
  void read() {
    const char* const begin = team.ahead_.load(std::memory_order_relaxed);
    if (begin != seen) {
      seen = begin;
      // A beginning and a size that do not belong together do no harm.
      const std::size_t bytes = team.ahead_bytes_.load(std::memory_order_relaxed);
      const std::size_t from = bytes * thread / team.threads_;
      const std::size_t share = bytes * (thread + 1) / team.threads_ - from;
      at = begin + from;
      end = at + std::min(share, kMostAhead);
      if (begin == nullptr) at = end = nullptr;
    }
    for (std::size_t i = 0; i < kLinesAtOnce && at < end; ++i, at += kLine) prefetch(at);
  }
};

Team::Team(std::size_t threads)
    : threads_(std::max<std::size_t>(threads, 1)),
      shares_(threads_ == 1 ? nullptr : new Share[threads_]) {
  std::fegetenv(&environment_);
}

void Team::read_ahead(Memory memory) {
  if (threads_ == 1) return;
  ahead_bytes_.store(memory.bytes, std::memory_order_relaxed);
  ahead_.store(memory.begin, std::memory_order_relaxed);
}

void Team::share(std::size_t chunks, const std::function<void(std::size_t)>& compute) {
  if (threads_ == 1 || chunks <= 1) {
    for (std::size_t c = 0; c < chunks; ++c) compute(c);
    return;
  }
  compute_ = &compute;
  done_.store(0, std::memory_order_relaxed);
  const std::uint64_t number = (piece_.load(std::memory_order_relaxed) >> kHalf) + 1;
  piece_.store(number << kHalf | chunks, std::memory_order_release);
  take_chunks(0);
  Reader reader{*this, 0};
  wait_until([&] {
    if (done_.load(std::memory_order_acquire) == chunks) return true;
    reader.read();
    return false;
  });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// Takes a chunk of the share of a thread; returns false if there is none, or if the piece is over.
bool Team::take(std::uint64_t piece, std::size_t thread, std::size_t& chunk) {
  const std::uint64_t number = piece >> kHalf, chunks = piece & kLower;
  const std::uint64_t begin = chunks * thread / threads_;
  const std::uint64_t count = chunks * (thread + 1) / threads_ - begin;
  std::atomic<std::uint64_t>& taken = shares_[thread].taken;
  std::uint64_t before = taken.load(std::memory_order_relaxed);
  for (;;) {
    const std::uint64_t since = (number - (before >> kHalf)) & kLower;
    if (since > kLower / 2) return false;  // it is of a later piece
    const std::uint64_t own = since == 0 ? before & kLower : 0;
    if (own >= count) return false;
    if (taken.compare_exchange_weak(before, (number << kHalf) | (own + 1),
                                    std::memory_order_acq_rel, std::memory_order_relaxed)) {
      chunk = begin + own;
      return true;
    }
  }
}

// A piece does not end while a thread has one of its chunks, so `compute_` is that piece's.
void Team::take_chunks(std::size_t thread) {
  const std::uint64_t piece = piece_.load(std::memory_order_acquire);
  std::size_t chunk, finished = 0;
  for (std::size_t i = 0; i < threads_; ++i) {
    while (take(piece, (thread + i) % threads_, chunk)) {
      try {
        (*compute_)(chunk);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex_);
        failure_ = std::current_exception();
      }
      ++finished;
      if (i > 0) done_.fetch_add(std::exchange(finished, 0), std::memory_order_release);
    }
    if (finished > 0) done_.fetch_add(std::exchange(finished, 0), std::memory_order_release);
  }
}

void Team::help() {
  std::fenv_t own;
  std::fegetenv(&own);
  std::fesetenv(&environment_);
  const std::size_t thread = (1 + helpers_.fetch_add(1, std::memory_order_relaxed)) % threads_;
  Reader reader{*this, thread};
  const auto over = [&] { return over_.load(std::memory_order_acquire); };
  std::uint64_t seen = 0;
  while (!over()) {
    const std::uint64_t piece = piece_.load(std::memory_order_acquire);
    if (piece != seen) take_chunks(thread);
    seen = piece;
    wait_until([&] {
      if (over() || piece_.load(std::memory_order_relaxed) != seen) return true;
      reader.read();
      return false;
    });
  }
  std::fesetenv(&own);
}

void with_team(std::size_t threads, const std::function<void(Team&)>& work) {
  Team team(threads);
  if (team.threads_ == 1) return work(team);
  const std::thread::id leader = std::this_thread::get_id();
  run_parallel(team.threads_, [&] {
    if (std::this_thread::get_id() != leader) return team.help();
    struct End {
      Team& team;
      ~End() { team.over_.store(true, std::memory_order_release); }
    } end{team};
    work(team);
  });
}

void share(std::size_t chunks, std::size_t threads,
           const std::function<void(std::size_t)>& compute) {
  with_team(std::min(threads, chunks), [&](Team& team) { team.share(chunks, compute); });
}

void share_rows(std::size_t rows, std::size_t operations, Team& team,
                const std::function<void(std::size_t, std::size_t)>& compute) {
  const std::size_t threads = std::min(team.threads(), operations / kOperationsInTeam);
  const std::size_t parts = std::min(rows, threads <= 1 ? 1 : 4 * threads);
  team.share(parts, [&](std::size_t part) {
    compute(part * rows / parts, (part + 1) * rows / parts);
  });
}

void share_rows(std::size_t rows, std::size_t operations, std::size_t threads,
                const std::function<void(std::size_t, std::size_t)>& compute) {
  with_team(std::min(threads, operations / kOperationsPerThread),
            [&](Team& team) { share_rows(rows, operations, team, compute); });
}

}  // namespace dart
