// A CUDA runtime without a GPU, for tests: cudaHostAlloc, cudaMemcpyAsync, cudaLaunchHostFunc and
// cudaGetErrorString, with a thread per stream, and what tests need to watch and disturb them.
//
// It ends the process if it is used in a way that CUDA does not allow: a copy that is not between
// the device's memory and pinned memory, in the given direction and within both; or a call within a
// host function. The device's memory cannot be read or written directly, as on a GPU. Pinned memory is
// allocated while no host function runs, as some driver may do it: what holds a lock then that host
// functions take hangs.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace stub {

void* make_stream();
// Waits until everything enqueued has run.
void wait(void* stream);
void end_stream(void* stream);  // waits as well

// From now on the stream runs nothing, or goes on.
void hold(void* stream);
void go_on(void* stream);
// From now on the stream waits before each operation.
void slow_down(void* stream, std::chrono::microseconds delay);
// Whether a host function is running.
bool is_calling(void* stream);
// What the stream has run: "to host 4", "call", "to device 240".
std::vector<std::string> operations(void* stream);

void* allocate(std::size_t bytes);  // on the device
void release(void* memory);
void write(void* to, const void* from, std::size_t bytes);
void read(void* to, const void* from, std::size_t bytes);

// Blocks that cudaHostAlloc has made. None is ever freed.
std::size_t pinned_blocks();
// The number of calls so far of the functions that may fail.
std::size_t calls();
// The call after `after` more ones fails, and those that follow it, `times` in all.
void fail(std::size_t after, std::size_t times = 1);

inline constexpr const char* kError = "the stub was told to fail";

}  // namespace stub
