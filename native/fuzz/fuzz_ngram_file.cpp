// Fuzzes the readers of n-gram files with libFuzzer, with and without repaired checksums.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "exercise_ngram_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::uint8_t> file(data, data + size);
  dart::exercise(file);
  if (dart::repair(&file)) dart::exercise(file);
  return 0;
}
