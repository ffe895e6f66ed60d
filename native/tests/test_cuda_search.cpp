#include "dart/cuda_search.h"

#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "dart/cuda_runtime.h"
#include "dart/search_handle.h"
#include "device_batch.h"
#include "ngram_file.h"
#include "search_errors.h"

namespace {

constexpr const char* kGone = "dart_search: the search no longer exists";
constexpr const char* kOtherSize = "dart_search: trees of another size";
constexpr const char* kTooLarge = "tree search: beam times candidates is too large";

// A search and its handle.
struct Searcher {
  explicit Searcher(const dart::TreeSearchConfig& config, const dart::NgramModel* ngram = nullptr)
      : search(ngram, config), handle(search) {}
  dart::TreeSearch search;
  dart::SearchHandle handle;
};

// The handle of a search that is gone.
std::int32_t gone() { return Searcher(config_of(1)).handle.value(); }

void test_trees_are_the_searchs() {
  const OwnedModel owned(random_documents(1, 30, 40, 20), 3, 30);
  std::mt19937 random(0);
  const TestStream stream;
  for (int i = 0; i < 300; ++i) {
    const auto below = [&](int bound) { return int(random() % unsigned(bound)); };
    const BatchSize size{below(10), below(5), below(7), below(2) == 0, below(2) == 0};
    const Batch batch(random, size);
    const int nodes = below(20);
    const Searcher searcher(config_of(nodes, 1 + below(3)),
                            below(2) == 0 ? &owned.model : nullptr);
    DeviceBatch device(searcher.handle.value(), batch, nodes);
    CHECK(enqueue(stream, i, device) == "");
    stub::wait(stream);
    CHECK(device.trees() == batch.trees(searcher.search));
  }
}

void test_order_of_operations() {
  std::mt19937 random(0);
  const TestStream stream;
  const Batch batch(random, {});
  const Searcher searcher(config_of(6));
  DeviceBatch device(searcher.handle.value(), batch, 6);
  CHECK(enqueue(stream, new_run(), device) == "");
  stub::wait(stream);
  const auto size = [](std::size_t numbers) { return std::to_string(4 * numbers); };
  CHECK((stub::operations(stream) ==
         std::vector<std::string>{"to host 4", "to host " + size(batch.packed.size()), "call",
                                  "to device " + size(4 * 4 * 7), "call"}));
}

void test_nobody_waits() {
  std::mt19937 random(0);
  const TestStream held, other;
  const Batch batch(random, {});
  const Searcher searcher(config_of(6));
  const Numbers32 trees = batch.trees(searcher.search);
  stub::hold(held);
  std::vector<std::unique_ptr<DeviceBatch>> enqueued;
  for (int i = 0; i < 20; ++i) {
    enqueued.push_back(std::make_unique<DeviceBatch>(searcher.handle.value(), batch, 6));
    CHECK(enqueue(held, 1, *enqueued.back()) == "");
  }
  // A stream does not wait for another one either.
  DeviceBatch device(searcher.handle.value(), batch, 6);
  CHECK(enqueue(other, 2, device) == "");
  stub::wait(other);
  CHECK(device.trees() == trees);
  for (const auto& batch : enqueued) CHECK(batch->trees() == batch->all(kUnwritten));
  stub::go_on(held);
  stub::wait(held);
  for (const auto& batch : enqueued) CHECK(batch->trees() == trees);
}

void test_memory_is_reused() {
  std::mt19937 random(0);
  const TestStream stream;
  const Searcher searcher(config_of(6));
  const auto blocks_for = [&](std::int64_t rows, int calls, bool at_once) {
    const std::size_t before = stub::pinned_blocks();
    const Batch batch(random, {rows});
    DeviceBatch device(searcher.handle.value(), batch, 6);
    if (at_once) stub::hold(stream);
    for (int i = 0; i < calls; ++i) {
      CHECK(enqueue(stream, new_run(), device) == "");
      if (!at_once) stub::wait(stream);
    }
    stub::go_on(stream);
    stub::wait(stream);
    CHECK(device.trees() == batch.trees(searcher.search));
    return stub::pinned_blocks() - before;
  };
  CHECK(blocks_for(400, 30, false) == 1);
  CHECK(blocks_for(400, 8, true) == 7);
  CHECK(blocks_for(399, 8, true) == 0);
  CHECK(blocks_for(1600, 1, true) == 1);  // does not fit
  CHECK(blocks_for(1600, 1, true) == 0);
  CHECK(blocks_for(400, 8, true) == 0);
}

// A search that fails in its stream: zeros, and the error at the next call of its execution, once.
void test_fails(const DeviceBatch& failing, const std::string& message) {
  std::mt19937 random(0);
  const TestStream stream;
  const Batch batch(random, {});
  const Searcher searcher(config_of(6));
  DeviceBatch works(searcher.handle.value(), batch, 6);
  const std::int64_t run = new_run(), other = new_run();
  CHECK(enqueue(stream, run, failing) == "");
  stub::wait(stream);
  CHECK(failing.trees() == failing.all(0));
  CHECK(enqueue(stream, other, works) == "");
  stub::wait(stream);
  CHECK(works.trees() == batch.trees(searcher.search));
  works.clear();
  CHECK(enqueue(stream, run, works) == message);
  stub::wait(stream);
  CHECK(works.trees() == works.all(kUnwritten));
  CHECK(enqueue(stream, run, works) == "");
  stub::wait(stream);
  CHECK(works.trees() == batch.trees(searcher.search));
}

void test_searches_that_fail() {
  std::mt19937 random(0);
  const Batch batch(random, {});
  test_fails(DeviceBatch(gone(), batch, 6), kGone);
  test_fails(DeviceBatch(-1, batch, 6), kGone);
  const Searcher searcher(config_of(6));
  test_fails(DeviceBatch(searcher.handle.value(), batch, 5), kOtherSize);
  test_fails(DeviceBatch(searcher.handle.value(), batch, 2000), kOtherSize);
  dart::TreeSearchConfig wide = config_of(6);
  wide.beam = 1000000000;
  const Searcher too_wide(wide);
  const Batch many(random, {2, 4, 300});
  test_fails(DeviceBatch(too_wide.handle.value(), many, 6), kTooLarge);
}

void test_errors_without_a_next_call() {
  std::mt19937 random(0);
  const TestStream stream;
  const Batch batch(random, {});
  const std::int32_t first = gone(), second = gone();
  DeviceBatch one(first, batch, 6), two(second, batch, 6);
  CHECK(!dart::take_search_error(first));
  // Of an execution, one error; of a handle, one per execution.
  const std::int64_t run = new_run(), next = new_run();
  stub::hold(stream);
  for (int i = 0; i < 3; ++i) CHECK(enqueue(stream, run, one) == "");
  CHECK(enqueue(stream, next, one) == "");
  CHECK(enqueue(stream, next, two) == "");
  stub::go_on(stream);
  stub::wait(stream);
  CHECK(dart::take_search_error(first) == kGone);
  CHECK(dart::take_search_error(first) == kGone);
  CHECK(!dart::take_search_error(first));
  CHECK(!dart::take_search_error(second));  // of the same execution as the second one
  CHECK(enqueue(stream, run, one) == "");
  stub::wait(stream);
  CHECK(enqueue(stream, run, one) == kGone);
  CHECK(!dart::take_search_error(first));
}

void test_errors_are_bounded() {
  std::mt19937 random(0);
  const TestStream stream;
  const Batch batch(random, {});
  const std::int32_t handle = gone();
  DeviceBatch device(handle, batch, 6);
  const std::int64_t oldest = new_run();
  CHECK(enqueue(stream, oldest, device) == "");
  for (std::size_t i = 0; i < dart::kSearchErrors; ++i) {
    CHECK(enqueue(stream, new_run(), device) == "");
  }
  stub::wait(stream);
  CHECK(!dart::take_run_error(oldest));
  std::size_t taken = 0;
  while (dart::take_search_error(handle)) ++taken;
  CHECK(taken == dart::kSearchErrors);
}

// With sanitizers this finds uses of a search after its destruction.
void test_destroyed_while_it_runs() {
  std::mt19937 random(0);
  const TestStream stream;
  const Batch batch(random, {300, 4, 8});
  int finished = 0;
  for (int i = 0; i < 20; ++i) {
    auto searcher = std::make_unique<Searcher>(config_of(40, 1 + i % 2));
    const Numbers32 trees = batch.trees(searcher->search);
    const std::int32_t handle = searcher->handle.value();
    DeviceBatch device(handle, batch, 40);
    const std::size_t done = stub::operations(stream).size();
    CHECK(enqueue(stream, new_run(), device) == "");
    // Usually it is running by then.
    while (!stub::is_calling(stream) && stub::operations(stream).size() < done + 5) {
      std::this_thread::yield();
    }
    if (i % 4 != 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    searcher.reset();
    stub::wait(stream);
    const bool failed = dart::take_search_error(handle).has_value();
    CHECK(device.trees() == (failed ? device.all(0) : trees));
    finished += !failed;
  }
  CHECK(finished > 0);
}

void test_refused_calls() {
  std::mt19937 random(0);
  const TestStream stream, held;
  const std::string message = std::string("dart_search: CUDA: ") + stub::kError;
  const Searcher searcher(config_of(6));
  const Batch batch(random, {40, 2, 2});
  DeviceBatch device(searcher.handle.value(), batch, 6);
  const auto works = [&] {
    device.clear();
    CHECK(enqueue(stream, new_run(), device) == "");
    stub::wait(stream);
    CHECK(device.trees() == batch.trees(searcher.search));
  };
  for (const bool allocates : {false, true}) {
    for (std::size_t call = 0; call < 5 + std::size_t{allocates}; ++call) {
      works();
      stub::hold(held);
      if (allocates) {
        // Until no block is unused.
        const std::size_t blocks = stub::pinned_blocks();
        while (stub::pinned_blocks() == blocks) {
          CHECK(enqueue(held, new_run(), device) == "");
        }
      }
      const std::size_t calls = stub::calls(), blocks = stub::pinned_blocks();
      stub::fail(call);
      CHECK(enqueue(stream, new_run(), device) == message);
      stub::wait(stream);
      // The calls up to the refused one, and that which ends the job.
      CHECK(stub::calls() - calls == call + 1 + !(allocates && call == 0));
      // Nothing is lost.
      works();
      works();
      CHECK(stub::pinned_blocks() - blocks == std::size_t{allocates});
      stub::go_on(held);
      stub::wait(held);
    }
  }
}

// What was enqueued before a refused call still uses its memory, which nobody else may use until then.
void test_memory_of_refused_calls() {
  std::mt19937 random(0);
  const Searcher searcher(config_of(6));
  for (const std::size_t times : {1, 2}) {
    for (std::size_t call = 0; call < 5; ++call) {
      const TestStream held, other;
      const Batch batch(random, {40, 2, 2}), next(random, {40, 2, 2});
      DeviceBatch first(searcher.handle.value(), batch, 6);
      DeviceBatch second(searcher.handle.value(), next, 6);
      CHECK(enqueue(held, new_run(), first) == "");
      stub::wait(held);
      first.clear();
      stub::hold(held);
      stub::fail(call, times);
      CHECK(enqueue(held, new_run(), first) != "");
      for (int i = 0; i < 3; ++i) {
        CHECK(enqueue(other, new_run(), second) == "");
        if (i == 1) stub::go_on(held);
      }
      stub::wait(other);
      stub::wait(held);
      CHECK(second.trees() == next.trees(searcher.search));
      CHECK(first.trees() == (call == 4 ? batch.trees(searcher.search) : first.all(kUnwritten)));
      // If even the end of the job could not be enqueued, its memory is lost, and nothing else.
      const std::size_t blocks = stub::pinned_blocks();
      for (int i = 0; i < 3; ++i) {
        CHECK(enqueue(other, new_run(), second) == "");
        stub::wait(other);
      }
      CHECK(stub::pinned_blocks() == blocks);
    }
  }
}

}  // namespace

int main() {
  dart::load_cuda_runtime(DART_STUB_CUDA_RUNTIME);
  test_trees_are_the_searchs();
  test_order_of_operations();
  test_nobody_waits();
  test_memory_is_reused();
  test_searches_that_fail();
  test_errors_without_a_next_call();
  test_errors_are_bounded();
  test_destroyed_while_it_runs();
  test_refused_calls();
  test_memory_of_refused_calls();
  return failures == 0 ? 0 : 1;
}
