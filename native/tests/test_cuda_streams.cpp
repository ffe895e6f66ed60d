// Many streams and threads at the same time; ThreadSanitizer watches (DART_SANITIZE_THREADS).
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "dart/cuda_runtime.h"
#include "dart/cuda_search.h"
#include "dart/search_handle.h"
#include "device_batch.h"

namespace {

constexpr int kThreads = 4;
constexpr int kSteps = 40;
const std::string kGone = "dart_search: the search no longer exists";

std::atomic<int> wrong{0};

void expect(bool condition) { wrong += !condition; }

// A search that the threads share.
struct Searcher {
  Searcher(int nodes, int threads) : search(nullptr, config_of(nodes, threads)), handle(search) {}
  dart::TreeSearch search;
  dart::SearchHandle handle;
};

using Searchers = std::vector<std::unique_ptr<Searcher>>;

// Programs of several steps in the thread's own streams and in one that all threads share.
void run_programs(const Searchers& searchers, void* shared, int thread) {
  std::mt19937 random(static_cast<unsigned>(thread));
  const TestStream own, slow;
  stub::slow_down(slow, std::chrono::microseconds(200));
  for (int step = 0; step < kSteps; ++step) {
    struct Enqueued {
      const Searcher& searcher;
      Batch batch;
      DeviceBatch device;
      Enqueued(const Searcher& searcher, std::mt19937& random, const BatchSize& size)
          : searcher(searcher), batch(random, size),
            device(searcher.handle.value(), batch, searcher.search.config().nodes) {}
    };
    std::vector<std::unique_ptr<Enqueued>> enqueued;
    for (void* stream : {static_cast<void*>(own), static_cast<void*>(slow), shared}) {
      for (int i = 0; i < 2; ++i) {
        const Searcher& searcher = *searchers[random() % searchers.size()];
        const BatchSize size{std::int64_t(1 + random() % 60), 3, 4, random() % 2 == 0};
        enqueued.push_back(std::make_unique<Enqueued>(searcher, random, size));
        const std::int64_t run = (std::int64_t{thread} << 32) + step;
        expect(enqueue(stream, run, enqueued.back()->device) == "");
      }
    }
    for (void* stream : {static_cast<void*>(own), static_cast<void*>(slow), shared}) {
      stub::wait(stream);
    }
    for (const auto& one : enqueued) {
      expect(one->device.trees() == one->batch.trees(one->searcher.search));
    }
  }
}

// Programs whose search is destroyed sooner or later: each step gives its trees, or zeros and then the
// error, in this program and no other.
void lose_searches(int thread) {
  std::mt19937 random(static_cast<unsigned>(thread));
  const TestStream stream;
  for (int i = 0; i < kSteps; ++i) {
    auto searcher = std::make_unique<Searcher>(9, 1 + i % 3);
    const Batch batch(random, {50, 3, 4});
    const Numbers32 trees = batch.trees(searcher->search);
    DeviceBatch device(searcher->handle.value(), batch, 9);
    const std::int64_t run = (std::int64_t{thread} << 32) + i;
    expect(enqueue(stream, run, device) == "");
    if (i % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    searcher.reset();
    stub::wait(stream);
    const Numbers32 made = device.trees();
    expect(made == trees || made == device.all(0));
    expect(enqueue(stream, run, device) == (made == trees ? "" : kGone));
    stub::wait(stream);
    if (made == trees) expect(enqueue(stream, run, device) == kGone);
    stub::wait(stream);
  }
}

void test_streams() {
  Searchers searchers;
  for (const int nodes : {0, 3, 12, 30}) {
    searchers.push_back(std::make_unique<Searcher>(nodes, 1 + nodes % 4));
  }
  const TestStream shared;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back(run_programs, std::cref(searchers), static_cast<void*>(shared), thread);
    threads.emplace_back(lose_searches, kThreads + thread);
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace

int main() {
  dart::load_cuda_runtime(DART_STUB_CUDA_RUNTIME);
  test_streams();
  return failures == 0 ? 0 : 1;
}
