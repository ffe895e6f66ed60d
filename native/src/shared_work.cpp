#include "dart/shared_work.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "thread_pool.h"

namespace dart {
namespace {

constexpr int kHalf = 32;
constexpr std::uint64_t kLower = 0xffffffffu;

}  // namespace

void Team::share(std::size_t chunks, const std::function<void(std::size_t)>& compute) {
  if (threads_ == 1 || chunks <= 1) {
    for (std::size_t c = 0; c < chunks; ++c) compute(c);
    return;
  }
  compute_ = &compute;
  done_.store(0, std::memory_order_relaxed);
  next_.store(std::uint64_t{chunks} << kHalf, std::memory_order_release);
  take_chunks();
  wait_until([&] { return done_.load(std::memory_order_acquire) == chunks; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// Whoever has a chunk holds up its piece, so that `compute_` is that piece's.
void Team::take_chunks() {
  for (;;) {
    std::uint64_t next = next_.load(std::memory_order_relaxed);
    if ((next & kLower) >= next >> kHalf) return;
    next = next_.fetch_add(1, std::memory_order_acq_rel);
    if ((next & kLower) >= next >> kHalf) return;
    try {
      (*compute_)(next & kLower);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      failure_ = std::current_exception();
    }
    done_.fetch_add(1, std::memory_order_release);
  }
}

void Team::help() {
  std::fenv_t own;
  std::fegetenv(&own);
  std::fesetenv(&environment_);
  const auto over = [&] { return over_.load(std::memory_order_acquire); };
  while (!over()) {
    take_chunks();
    wait_until([&] {
      const std::uint64_t next = next_.load(std::memory_order_relaxed);
      return over() || (next & kLower) < next >> kHalf;
    });
  }
  std::fesetenv(&own);
}

void with_team(std::size_t threads, const std::function<void(Team&)>& work) {
  Team team;
  team.threads_ = std::max<std::size_t>(threads, 1);
  if (team.threads_ == 1) return work(team);
  std::fegetenv(&team.environment_);
  const std::thread::id leader = std::this_thread::get_id();
  run_parallel(team.threads_, [&] {
    if (std::this_thread::get_id() != leader) return team.help();
    std::exception_ptr failure;
    try {
      work(team);
    } catch (...) {
      failure = std::current_exception();
    }
    team.over_.store(true, std::memory_order_release);
    if (failure) std::rethrow_exception(failure);
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
