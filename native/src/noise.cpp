#include "dart/noise.h"

#include <algorithm>

#include "dart/shared_work.h"
#include "kernels.h"

namespace dart {
namespace {

constexpr std::size_t kChunk = 4096;         // numbers computed at a time
constexpr std::size_t kOperations = 128;     // of a number

}  // namespace

void make_noise(const Noise& noise, Instructions instructions, std::size_t threads) {
  const Kernels& kernels = *dart::kernels(instructions);
  const std::size_t rows = noise.sequences * noise.columns;
  const std::size_t chunks = (noise.vocabulary + kChunk - 1) / kChunk;
  const std::size_t operations = rows * noise.vocabulary * kOperations;
  threads = std::min(threads, std::max<std::size_t>(operations / kOperationsPerThread, 1));
  share(rows * chunks, threads, [&](std::size_t i) {
    const std::size_t row = i / chunks, begin = i % chunks * kChunk;
    const std::size_t end = std::min(begin + kChunk, noise.vocabulary);
    const auto position = static_cast<std::uint32_t>(noise.positions[row]);
    const ThreefryKey key = kernels.fold(noise.keys[row / noise.columns], position);
    kernels.gumbel(key, begin, end, noise.out + row * noise.vocabulary + begin);
  });
}

void noise_of_tokens(const ThreefryKey& key, std::int32_t position, const std::int32_t* tokens,
                     std::size_t count, float* out, Instructions instructions) {
  const Kernels& kernels = *dart::kernels(instructions);
  kernels.gumbel_of(kernels.fold(key, static_cast<std::uint32_t>(position)), tokens, count, out);
}

}  // namespace dart
