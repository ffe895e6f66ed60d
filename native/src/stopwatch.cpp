#include "dart/stopwatch.h"

#include <atomic>
#include <chrono>

namespace dart {
namespace {

constexpr int kNone = -1;

std::atomic<bool> on{false};
std::array<std::atomic<std::int64_t>, kParts> nanoseconds{};

struct Running {
  int part = kNone;
  std::int64_t since = 0;
};
thread_local Running running;

std::int64_t now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

// Ends what runs, and lets another part run.
void change_to(int part) {
  const std::int64_t time = now();
  if (running.part != kNone) {
    nanoseconds[static_cast<std::size_t>(running.part)].fetch_add(time - running.since,
                                                                   std::memory_order_relaxed);
  }
  running = {part, time};
}

}  // namespace

Timed::Timed(Part part) {
  const auto is = [](Part whole) { return running.part == static_cast<int>(whole); };
  if (!on.load(std::memory_order_relaxed) || is(Part::kDrafter) || is(Part::kHeads)) return;
  counts_ = true;
  before_ = running.part;
  change_to(static_cast<int>(part));
}

Timed::~Timed() {
  if (counts_) change_to(before_);
}

void measure(bool begin) {
  for (auto& each : nanoseconds) each.store(0, std::memory_order_relaxed);
  on.store(begin, std::memory_order_relaxed);
}

std::array<double, kParts> measured_seconds() {
  std::array<double, kParts> seconds;
  for (std::size_t i = 0; i < kParts; ++i) {
    seconds[i] = 1e-9 * static_cast<double>(nanoseconds[i].load(std::memory_order_relaxed));
  }
  return seconds;
}

}  // namespace dart
