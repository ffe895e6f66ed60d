// Reads damaged files with valid checksums. Run with sanitizers (DART_SANITIZE) to detect
// out-of-bounds reads.
#include <cstddef>

#include "../fuzz/exercise_ngram_file.h"
#include "../fuzz/seeds.h"
#include "check.h"

int main() {
  std::size_t repaired = 0;
  const std::vector<Bytes> seeds = seed_files();
  for (std::size_t s = 0; s < seeds.size(); ++s) {
    dart::exercise(seeds[s]);
    // Different bits of each seed, and many over all seeds.
    const std::size_t bits = 8 * seeds[s].size();
    for (std::size_t bit = s; bit < bits; bit += 1 + bits / 200) {
      Bytes damaged = seeds[s];
      damaged[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
      dart::exercise(damaged);
      if (!dart::repair(&damaged)) continue;
      dart::exercise(damaged);
      ++repaired;
    }
  }
  CHECK(repaired > 100 * seeds.size());
  return failures == 0 ? 0 : 1;
}
