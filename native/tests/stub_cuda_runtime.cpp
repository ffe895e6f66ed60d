#include "stub_cuda_runtime.h"

#include <sys/mman.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <utility>

namespace {

enum class Copy { kToDevice = 1, kToHost = 2 };  // cudaMemcpyKind

struct Operation {
  std::string name;
  bool is_call;
  std::function<void()> run;
};

thread_local bool in_host_function = false;

// Host functions share it; an allocation has it alone.
std::shared_mutex& host_functions() {
  static std::shared_mutex& mutex = *new std::shared_mutex;
  return mutex;
}

[[noreturn]] void end(const char* reason) {
  std::fprintf(stderr, "stub CUDA runtime: %s\n", reason);
  std::abort();
}

// Blocks of memory, by their first address.
class Memory {
 public:
  // `bytes` at `address` stand for those at `contents`.
  void add(void* address, std::size_t bytes, char* contents) {
    const std::lock_guard lock(mutex_);
    blocks_[reinterpret_cast<std::uintptr_t>(address)] = {bytes, contents};
  }

  char* remove(void* address, std::size_t* bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(address));
    if (found == blocks_.end()) end("memory that is not there is released");
    const auto [size, contents] = found->second;
    blocks_.erase(found);
    *bytes = size;
    return contents;
  }

  // Where the contents of a range are; ends the process unless it is within one block.
  char* at(const void* address, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto first = reinterpret_cast<std::uintptr_t>(address);
    auto block = blocks_.upper_bound(first);
    if (block == blocks_.begin()) end("a copy from or to other memory");
    --block;
    const std::size_t offset = first - block->first;
    if (offset + bytes > block->second.first) end("a copy beyond a block of memory");
    return block->second.second + offset;
  }

  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return blocks_.size();
  }

 private:
  std::mutex mutex_;
  std::map<std::uintptr_t, std::pair<std::size_t, char*>> blocks_;
};

Memory& device() {
  static Memory& memory = *new Memory;
  return memory;
}

Memory& pinned() {
  static Memory& memory = *new Memory;
  return memory;
}

class Stream {
 public:
  Stream() : thread_(&Stream::run, this) {}

  ~Stream() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
      held_ = false;
    }
    changed_.notify_all();
    thread_.join();
  }

  void enqueue(Operation operation) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(operation));
    }
    changed_.notify_all();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty(); });
  }

  void hold(bool held) {
    {
      const std::lock_guard lock(mutex_);
      held_ = held;
    }
    changed_.notify_all();
  }

  void slow_down(std::chrono::microseconds delay) {
    const std::lock_guard lock(mutex_);
    delay_ = delay;
  }

  bool is_calling() const { return calling_; }

  std::vector<std::string> operations() {
    const std::lock_guard lock(mutex_);
    return done_;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !held_ && (ends_ || !queue_.empty()); });
      if (queue_.empty()) return;
      const Operation& operation = queue_.front();
      const auto delay = delay_;
      lock.unlock();
      if (delay.count() > 0) std::this_thread::sleep_for(delay);
      calling_ = in_host_function = operation.is_call;
      operation.run();
      calling_ = in_host_function = false;
      lock.lock();
      done_.push_back(operation.name);
      queue_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queue_;  // the first one may be running
  std::vector<std::string> done_;
  std::chrono::microseconds delay_{0};
  bool held_ = false;
  bool ends_ = false;
  std::atomic<bool> calling_{false};
  std::thread thread_;
};

Stream& stream_at(void* stream) { return *static_cast<Stream*>(stream); }

std::mutex failing;
std::size_t made = 0, fails_after = 0, fails = 0;

// Counts a call; returns whether it fails.
bool call_fails() {
  if (in_host_function) end("CUDA is called within a host function");
  const std::lock_guard lock(failing);
  ++made;
  if (fails == 0) return false;
  if (fails_after > 0) {
    --fails_after;
    return false;
  }
  --fails;
  return true;
}

constexpr int kFails = 2;

}  // namespace

extern "C" {

int cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  if (call_fails()) return kFails;
  if (flags != 1) end("pinned memory that is not for every device");
  const std::lock_guard alone(host_functions());
  constexpr std::size_t kPage = 4096;
  *memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  if (*memory == nullptr) return kFails;
  pinned().add(*memory, bytes, static_cast<char*>(*memory));
  return 0;
}

int cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int kind, void* stream) {
  if (call_fails()) return kFails;
  const bool to_device = kind == static_cast<int>(Copy::kToDevice);
  if (!to_device && kind != static_cast<int>(Copy::kToHost)) end("a copy of another kind");
  Memory& target = to_device ? device() : pinned();
  Memory& source = to_device ? pinned() : device();
  target.at(to, bytes);
  source.at(from, bytes);
  const auto run = [=, &target, &source] {
    std::memcpy(target.at(to, bytes), source.at(from, bytes), bytes);
  };
  stream_at(stream).enqueue(
      {(to_device ? "to device " : "to host ") + std::to_string(bytes), false, run});
  return 0;
}

int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  if (call_fails()) return kFails;
  stream_at(stream).enqueue({"call", true, [=] {
                                 const std::shared_lock lock(host_functions());
                                 function(data);
                               }});
  return 0;
}

const char* cudaGetErrorString(int error) {
  if (in_host_function) end("CUDA is called within a host function");
  return error == kFails ? stub::kError : "unknown error";
}

}  // extern "C"

namespace stub {

void* make_stream() { return new Stream; }
void wait(void* stream) { stream_at(stream).wait(); }
void end_stream(void* stream) { delete &stream_at(stream); }
void hold(void* stream) { stream_at(stream).hold(true); }
void go_on(void* stream) { stream_at(stream).hold(false); }
void slow_down(void* stream, std::chrono::microseconds delay) {
  stream_at(stream).slow_down(delay);
}
bool is_calling(void* stream) { return stream_at(stream).is_calling(); }
std::vector<std::string> operations(void* stream) { return stream_at(stream).operations(); }

// Addresses that nobody may use; what they hold is elsewhere.
void* allocate(std::size_t bytes) {
  void* address = mmap(nullptr, bytes + 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) end("no memory");
  device().add(address, bytes, new char[bytes + 1]);
  return address;
}

void release(void* memory) {
  std::size_t bytes;
  delete[] device().remove(memory, &bytes);
  munmap(memory, bytes + 1);
}

void write(void* to, const void* from, std::size_t bytes) {
  std::memcpy(device().at(to, bytes), from, bytes);
}

void read(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, device().at(from, bytes), bytes);
}

std::size_t pinned_blocks() { return pinned().size(); }

std::size_t calls() {
  const std::lock_guard lock(failing);
  return made;
}

void fail(std::size_t after, std::size_t times) {
  const std::lock_guard lock(failing);
  fails_after = after;
  fails = times;
}

}  // namespace stub
