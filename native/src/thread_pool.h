// Threads that searches and models' layers share, started when first needed and kept. For a short
// while after its work each looks out for more before it sleeps.
#pragma once

#include <cstddef>
#include <functional>

namespace dart {

// Calls `work` in this thread and, at the same time, in at most `threads - 1` threads of the pool.
// Returns when no call is left running, and then rethrows one of the exceptions they threw.
//
// `work` must do what it finds left to do, whatever number of calls share it: threads that are busy
// or cannot be started are not waited for. With one thread this is a plain call.
//
// Safe to call from several threads at once, and in a child process after a fork.
void run_parallel(std::size_t threads, const std::function<void()>& work);

}  // namespace dart
