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

struct Job {
  const std::function<void()>& work;
  std::size_t wanted;       // more calls that threads of the pool may make
  std::size_t running = 0;  // calls in threads of the pool
  std::exception_ptr failure;
};

class Pool {
 public:
  explicit Pool(pid_t process) : process_(process) {}

  pid_t process() const { return process_; }

  void run(std::size_t helpers, const std::function<void()>& work) {
    Job job{work, helpers, 0, nullptr};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      start(helpers);
      jobs_.push_back(&job);
    }
    for (std::size_t i = 0; i < helpers; ++i) wake_.notify_one();
    std::exception_ptr failure;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), &job), jobs_.end());
    ended_.wait(lock, [&] { return job.running == 0; });
    if (!failure) failure = job.failure;
    lock.unlock();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  // Has this many threads, or as many as the system allows.
  void start(std::size_t threads) {
    try {
      for (; threads_ < threads; ++threads_) std::thread(&Pool::serve, this).detach();
    } catch (const std::system_error&) {
    }
  }

  [[noreturn]] void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return !jobs_.empty(); });
      Job& job = *jobs_.front();
      if (--job.wanted == 0) jobs_.pop_front();
      ++job.running;
      lock.unlock();
      std::exception_ptr failure;
      try {
        job.work();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure) job.failure = failure;
      if (--job.running == 0) ended_.notify_all();
    }
  }

  const pid_t process_;
  std::mutex mutex_;  // protects everything below, and the jobs' numbers and failures
  std::condition_variable wake_, ended_;
  std::deque<Job*> jobs_;
  std::size_t threads_ = 0;
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
