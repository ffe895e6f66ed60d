// Where the time of calls goes, for eval.latency: measured only between two calls of `measure`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dart {

enum class Part {
  kProducts,   // of layers
  kAttention,  // of layers
  kRows,       // of layers: norms, rotation, gates, rounding
  kWaiting,    // of layers, for other threads
  kHeads,      // products outside of layers: heads, projections of features
  kDrafter,    // all of a drafter's layer
  kDraws,      // and largest entries
  kSearch,
  kCaches,  // rows that are kept
  kOther,   // of calls: their arguments
};
constexpr std::size_t kParts = 10;

// Counts the time of this thread, until it ends, as that of a part; that of parts within it, which
// other timers measure, is only theirs. Within kDrafter and kHeads nothing else is measured. Costs
// some nanoseconds.
class Timed {
 public:
  explicit Timed(Part part);
  ~Timed();
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  bool counts_ = false;
  int before_ = 0;
};

// Begins to measure, with zeros; or ends.
void measure(bool on);

// Seconds by part, of all threads that call the core.
std::array<double, kParts> measured_seconds();

}  // namespace dart
