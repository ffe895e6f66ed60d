#include "thread_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"

namespace {

// Takes numbers below `size` until none is left; counts how often each was taken.
bool takes_each_once(std::size_t threads, std::size_t size) {
  std::vector<int> taken(size, 0);
  std::atomic<std::size_t> next{0};
  dart::run_parallel(threads, [&] {
    for (std::size_t i; (i = next++) < size;) ++taken[i];
  });
  return taken == std::vector<int>(size, 1);
}

// Waits until `number` calls are here at the same time.
class Meeting {
 public:
  explicit Meeting(int number) : missing_(number) {}
  void wait() {
    --missing_;
    while (missing_ > 0) std::this_thread::yield();
  }

 private:
  std::atomic<int> missing_;
};

void test_work_is_shared() {
  for (std::size_t threads = 0; threads <= 6; ++threads) {
    for (std::size_t size : {0, 1, 3, 1000}) CHECK(takes_each_once(threads, size));
  }
}

void test_calls_run_at_the_same_time() {
  Meeting meeting(4);
  dart::run_parallel(4, [&] { meeting.wait(); });
}

void test_one_thread_is_the_callers() {
  int calls = 0;
  dart::run_parallel(1, [&, caller = std::this_thread::get_id()] {
    CHECK(std::this_thread::get_id() == caller);
    ++calls;
  });
  CHECK(calls == 1);
}

void test_threads_are_kept() {
  std::set<std::thread::id> seen;
  std::mutex seeing;
  for (int run = 0; run < 50; ++run) {
    Meeting meeting(3);
    dart::run_parallel(3, [&] {
      meeting.wait();
      const std::lock_guard<std::mutex> lock(seeing);
      seen.insert(std::this_thread::get_id());
    });
  }
  // Those that the tests before this one have started.
  CHECK(seen.size() <= 6);
}

void test_exceptions() {
  for (int run = 0; run < 100; ++run) {
    Meeting meeting(3);
    std::atomic<int> ended{0};
    const auto caller = std::this_thread::get_id();
    const bool from_caller = run % 2 == 0;
    const auto work = [&] {
      meeting.wait();
      const bool fails = (std::this_thread::get_id() == caller) == from_caller;
      if (!fails) std::this_thread::sleep_for(std::chrono::microseconds(100));
      ++ended;
      if (fails) throw std::runtime_error("row");
    };
    CHECK_THROWS(dart::run_parallel(3, work), std::runtime_error);
    CHECK(ended == 3);
  }
  CHECK_THROWS(dart::run_parallel(1, [] { throw std::length_error("row"); }), std::length_error);
  CHECK(takes_each_once(3, 100));
}

void test_callers_at_the_same_time() {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&, caller] {
      for (int run = 0; run < 200; ++run) wrong += !takes_each_once(1 + (caller + run) % 5, 40);
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(wrong == 0);
}

void test_calls_inside_of_calls() {
  std::atomic<int> wrong{0};
  dart::run_parallel(3, [&] { wrong += !takes_each_once(3, 40); });
  CHECK(wrong == 0);
}

[[maybe_unused]] int exit_status(pid_t child) {
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// The child has none of the parent's threads, one of which may hold the pool's lock.
[[maybe_unused]] void test_after_a_fork() {
  std::atomic<bool> done{false};
  std::thread busy;
#ifndef __SANITIZE_ADDRESS__  // its allocator's locks do not survive a fork while a thread runs
  busy = std::thread([&] {
    while (!done) takes_each_once(3, 10);
  });
#endif
  for (int run = 0; run < 20; ++run) {
    const pid_t child = fork();
    if (child == 0) {
      Meeting meeting(3);
      dart::run_parallel(3, [&] { meeting.wait(); });
      _exit(takes_each_once(4, 100) ? 0 : 1);
    }
    CHECK(exit_status(child) == 0);
  }
  done = true;
  if (busy.joinable()) busy.join();
  CHECK(takes_each_once(4, 100));
}

[[maybe_unused]] void test_the_process_ends_during_calls() {
  for (int run = 0; run < 20; ++run) {
    const pid_t child = fork();
    if (child == 0) {
      std::atomic<bool> began{false};
      std::thread([&] {
        for (;;) {
          takes_each_once(3, 10);
          began = true;
        }
      }).detach();
      while (!began) std::this_thread::yield();
      std::exit(0);
    }
    CHECK(exit_status(child) == 0);
  }
}

}  // namespace

int main() {
  test_work_is_shared();
  test_calls_run_at_the_same_time();
  test_one_thread_is_the_callers();
  test_threads_are_kept();
  test_exceptions();
  test_callers_at_the_same_time();
  test_calls_inside_of_calls();
#ifndef __SANITIZE_THREAD__  // it supports no threads after a fork
  test_after_a_fork();
  test_the_process_ends_during_calls();
#endif
  return failures == 0 ? 0 : 1;
}
