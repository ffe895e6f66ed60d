#include "thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace dart {
namespace {

// A thread that waits looks this often whether the wait is over before it sleeps: waking it up
// takes longer than a small job, and a model's step has many of them, one after another.
constexpr int kTurns = 20000;

// Returns when `over` does, or after some time.
template <class Over>
void look(const Over& over) {
  constexpr int kTurnsBetweenYields = 64;
  for (int turn = 0; turn < kTurns && !over(); ++turn) pause(turn, kTurnsBetweenYields);
}

// Takes a lock that is never held for long.
std::unique_lock<std::mutex> lock_soon(std::mutex& mutex) {
  std::unique_lock<std::mutex> lock(mutex, std::defer_lock);
  look([&] { return lock.try_lock(); });
  if (!lock) lock.lock();
  return lock;
}

struct Job {
  const std::function<void()>& work;
  std::size_t wanted;                   // more calls that threads of the pool may make
  std::atomic<std::size_t> running{0};  // calls in threads of the pool
  std::exception_ptr failure;
};

class Pool {
 public:
  explicit Pool(pid_t process) : process_(process) {}

  pid_t process() const { return process_; }

  void run(std::size_t helpers, const std::function<void()>& work) {
    Job job{work, helpers, {}, nullptr};
    std::size_t wake;
    {
      const auto lock = lock_soon(mutex_);
      start(helpers);
      jobs_.push_back(&job);
      wake = std::min(helpers, asleep_);
    }
    posted_.fetch_add(1, std::memory_order_release);
    for (std::size_t i = 0; i < wake; ++i) wake_.notify_one();
    attempt(job);
    {
      const auto lock = lock_soon(mutex_);
      jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), &job), jobs_.end());
    }
    const auto over = [&] { return job.running.load(std::memory_order_acquire) == 0; };
    look(over);
    if (!over()) {
      std::unique_lock<std::mutex> lock(mutex_);
      ended_.wait(lock, over);
    }
    if (job.failure) std::rethrow_exception(job.failure);
  }

 private:
  void attempt(Job& job) {
    try {
      job.work();
    } catch (...) {
      const auto lock = lock_soon(mutex_);
      job.failure = std::current_exception();
    }
  }

  // Has this many threads, or as many as the system allows.
  void start(std::size_t threads) {
    try {
      for (; threads_ < threads; ++threads_) std::thread(&Pool::serve, this).detach();
    } catch (const std::system_error&) {
    }
  }

  [[noreturn]] void serve() {
    auto lock = lock_soon(mutex_);
    for (;;) {
      if (jobs_.empty()) {
        const std::size_t posted = posted_.load(std::memory_order_acquire);
        const auto over = [&] { return posted_.load(std::memory_order_acquire) != posted; };
        lock.unlock();
        look(over);
        lock = lock_soon(mutex_);
        if (jobs_.empty()) {
          if (over()) continue;
          ++asleep_;
          wake_.wait(lock, [&] { return !jobs_.empty(); });
          --asleep_;
        }
      }
      Job& job = *jobs_.front();
      if (--job.wanted == 0) jobs_.pop_front();
      job.running.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      attempt(job);
      lock = lock_soon(mutex_);
      // The job may be gone after this.
      if (job.running.fetch_sub(1, std::memory_order_release) == 1) ended_.notify_all();
    }
  }

  const pid_t process_;
  std::atomic<std::size_t> posted_{0};  // jobs so far
  std::mutex mutex_;  // protects everything below, and the jobs' numbers and failures
  std::condition_variable wake_, ended_;
  std::deque<Job*> jobs_;
  std::size_t threads_ = 0;
  std::size_t asleep_ = 0;
};

// The pool of this process. It is never destroyed: a search may still run in another thread while
// the process ends. After a fork the parent's pool has no threads, and its lock may be held.
Pool& pool() {
  static std::atomic<Pool*> current{nullptr};
  const pid_t process = getpid();
  Pool* found = current.load(std::memory_order_acquire);
  while (found == nullptr || found->process() != process) {
    Pool* made = new Pool(process);
    if (current.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return *made;
    delete made;
  }
  return *found;
}

}  // namespace

void run_parallel(std::size_t threads, const std::function<void()>& work) {
  if (threads <= 1) {
    work();
  } else {
    pool().run(threads - 1, work);
  }
}

}  // namespace dart
