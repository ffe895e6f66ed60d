// Valid n-gram files as seeds: every order, short and long lists at every length, exact and rounded
// counts, counts of 0, and nearly empty files.
#pragma once

#include <cstdint>
#include <vector>

#include "../tests/ngram_file.h"

inline std::vector<Bytes> seed_files() {
  std::vector<Bytes> files;
  for (int order = 1; order <= dart::kMaxOrder; ++order) {
    for (std::uint32_t precision : {0u, 2u, 5u}) {
      const auto seed = static_cast<std::uint64_t>(10 * order) + precision;
      // A small vocabulary, with long lists down to the last level, and a larger one.
      const Windows dense = windows_of(random_documents(seed, 20, 4, 400), order);
      files.push_back(file_of(dense, order, options_of(20, precision)));
      const Windows sparse = windows_of(random_documents(seed, 300, 12, 60), order);
      files.push_back(file_of(sparse, order, options_of(300, precision)));
      // Some windows with their counts set to 0.
      Windows thinned = sparse;
      int i = 0;
      for (auto& [window, count] : thinned) count = ++i % 3 == 0 ? 0 : count;
      files.push_back(file_of(thinned, order, options_of(300, precision)));
    }
    files.push_back(file_of({}, order, options_of(1)));
    files.push_back(file_of(windows_of({Tokens(9, 0)}, order), order, options_of(1)));
  }
  return files;
}
