// Threads that searches and models' layers share, started when first needed and kept. For a short
// while after its work each looks out for more before it sleeps.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace dart {

// Lets the processor's other thread go first, and in the last of `turns` turns of a wait all that
// has no core: it may be what is waited for.
inline void pause(int turn, int turns) {
  if (turn % turns == turns - 1) {
    std::this_thread::yield();
    return;
  }
#if defined(__SSE2__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits for something that comes within microseconds.
template <class Over>
void wait_until(const Over& over) {
  constexpr int kTurns = 512;
  for (int turn = 0; !over(); turn = (turn + 1) % kTurns) pause(turn, kTurns);
}

// Calls `work` in this thread and, at the same time, in at most `threads - 1` threads of the pool.
// Returns when no call is left running, and then rethrows one of the exceptions they threw.
//
// `work` must do what it finds left to do, with any number of calls: threads that are busy or
// cannot be started are not waited for. With one thread this is a plain call.
//
// Safe to call from several threads at once, and in a child process after a fork.
void run_parallel(std::size_t threads, const std::function<void()>& work);

}  // namespace dart
