#include "dart/packed_product.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <memory>
#include <thread>

#include "product_variants.h"

namespace dart {
namespace {

// Weights to read, or multiplications, that a thread must have to itself: about ten microseconds on
// an EPYC of 2024. With less it cost more to start the thread than it computed meanwhile.
constexpr std::size_t kBytesPerThread = 384 * 1024;
constexpr std::size_t kOperationsPerThread = 1 << 20;

MultiplyTiles variant(Instructions instructions) {
  switch (instructions) {
    case Instructions::kAvx512:
      return kMultiplyAvx512;
    case Instructions::kAvx2:
      return kMultiplyAvx2;
    case Instructions::kNeon:
      return kMultiplyNeon;
    case Instructions::kPortable:
      break;
  }
  return kMultiplyPortable;
}

// A product whose tiles several threads share. It outlives the call: tasks may begin after it.
class SharedProduct {
 public:
  SharedProduct(const PackedProduct& product, MultiplyTiles multiply, std::size_t threads)
      : product_(product), multiply_(multiply) {
    tiles_ = (product.out + kTileWidth - 1) / kTileWidth;
    // Several chunks each, as a thread may begin late or be interrupted; of 4 tiles, as single rows
    // are multiplied with so many at once.
    chunk_ = std::max<std::size_t>(1, tiles_ / (4 * threads));
    if (product.rows == 1) chunk_ = (chunk_ + 3) / 4 * 4;
    chunks_ = (tiles_ + chunk_ - 1) / chunk_;
    // Whether tiny numbers are rounded to 0 must not depend on who computes them.
    std::fegetenv(&environment_);
  }

  std::size_t chunks() const { return chunks_; }

  // Computes chunks until none is left.
  void compute() {
    for (std::size_t c; (c = next_.fetch_add(1, std::memory_order_relaxed)) < chunks_;) {
      multiply_(product_, c * chunk_, std::min((c + 1) * chunk_, tiles_));
      computed_.fetch_add(1, std::memory_order_release);
    }
  }

  // As `compute`, in another thread than the caller's.
  void help() {
    if (next_.load(std::memory_order_relaxed) >= chunks_) return;
    std::fenv_t own;
    std::fegetenv(&own);
    std::fesetenv(&environment_);
    compute();
    std::fesetenv(&own);
  }

  // Waits for the chunks that other threads took. That is short, unless one was interrupted.
  void wait() const {
    for (int turns = 0; computed_.load(std::memory_order_acquire) < chunks_; ++turns) {
      if (turns >= kTurns) std::this_thread::yield();
    }
  }

 private:
  static constexpr int kTurns = 2000;

  const PackedProduct product_;
  const MultiplyTiles multiply_;
  std::size_t tiles_, chunk_, chunks_;
  std::fenv_t environment_;
  std::atomic<std::size_t> next_{0}, computed_{0};
};

}  // namespace

bool supported(Instructions instructions) {
  if (variant(instructions) == nullptr) return false;
#if defined(__x86_64__) && defined(__GNUC__)
  if (instructions == Instructions::kAvx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma");
  }
  if (instructions == Instructions::kAvx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  }
#endif
  return true;
}

Instructions best_instructions() {
  static const Instructions best = [] {
    for (Instructions each : {Instructions::kAvx512, Instructions::kAvx2, Instructions::kNeon}) {
      if (supported(each)) return each;
    }
    return Instructions::kPortable;
  }();
  return best;
}

void multiply(const PackedProduct& product, Instructions instructions, std::size_t threads,
              const Schedule& schedule) {
  const MultiplyTiles multiply = variant(instructions);
  const std::size_t tiles = (product.out + kTileWidth - 1) / kTileWidth;
  if (product.rows == 0 || tiles == 0) return;
  const std::size_t size = product.in * product.out;
  const std::size_t bytes = size * (product.weights == WeightType::kBfloat16 ? 2 : 4);
  threads = std::min(threads, std::max(bytes / kBytesPerThread,
                                       product.rows * size / kOperationsPerThread));
  if (threads <= 1) {
    multiply(product, 0, tiles);
    return;
  }
  const auto shared = std::make_shared<SharedProduct>(product, multiply, threads);
  const std::size_t helpers = std::min(threads, shared->chunks()) - 1;
  try {
    for (std::size_t i = 0; i < helpers; ++i) schedule([shared] { shared->help(); });
  } catch (...) {
    // Those that began must be waited for, and this thread computes what is left.
  }
  shared->compute();
  shared->wait();
}

}  // namespace dart
