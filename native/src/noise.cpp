#include "dart/noise.h"

#include <algorithm>

#include "dart/shared_work.h"
#include "kernels.h"

namespace dart {
namespace {

constexpr std::size_t kChunk = 4096;         // numbers computed at a time
constexpr std::size_t kOperations = 128;     // of a number

ThreefryKey key_of(const Kernels& kernels, std::uint32_t seed, std::size_t row,
                   std::int32_t position) {
  const ThreefryKey key = kernels.fold({0, seed}, static_cast<std::uint32_t>(row));
  return kernels.fold(key, static_cast<std::uint32_t>(position));
}

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
    const ThreefryKey key =
        key_of(kernels, noise.seed, row / noise.columns, noise.positions[row]);
    kernels.gumbel(key, begin, end, noise.out + row * noise.vocabulary + begin);
  });
}

void noise_of_tokens(std::uint32_t seed, std::size_t row, std::int32_t position,
                     const std::int32_t* tokens, std::size_t count, float* out,
                     Instructions instructions) {
  const Kernels& kernels = *dart::kernels(instructions);
  kernels.gumbel_of(key_of(kernels, seed, row, position), tokens, count, out);
}

void add_noise(const NoisyLogits& logits, Instructions instructions) {
  kernels(instructions)->add_noise(logits);
}

}  // namespace dart
