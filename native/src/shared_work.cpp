#include "dart/shared_work.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <thread>

#include "thread_pool.h"

namespace dart {

void share(std::size_t chunks, std::size_t threads,
           const std::function<void(std::size_t)>& compute) {
  if (threads <= 1 || chunks <= 1) {
    for (std::size_t c = 0; c < chunks; ++c) compute(c);
    return;
  }
  std::atomic<std::size_t> next{0};
  const auto compute_some = [&] {
    for (std::size_t c; (c = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) compute(c);
  };
  const std::thread::id caller = std::this_thread::get_id();
  std::fenv_t environment;
  std::fegetenv(&environment);
  run_parallel(std::min(threads, chunks), [&] {
    if (std::this_thread::get_id() == caller) return compute_some();
    std::fenv_t own;
    std::fegetenv(&own);
    std::fesetenv(&environment);
    compute_some();
    std::fesetenv(&own);
  });
}

void share_rows(std::size_t rows, std::size_t operations, std::size_t threads,
                const std::function<void(std::size_t, std::size_t)>& compute) {
  threads = std::min(threads, std::max<std::size_t>(operations / kOperationsPerThread, 1));
  const std::size_t parts = std::min(rows, threads == 1 ? 1 : 4 * threads);
  share(parts, threads, [&](std::size_t part) {
    compute(part * rows / parts, (part + 1) * rows / parts);
  });
}

}  // namespace dart
