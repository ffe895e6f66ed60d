// Small n-gram files, counted and held in memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "dart/bits.h"
#include "dart/ngram_builder.h"
#include "dart/ngram_file_writer.h"
#include "dart/ngram_model.h"

using Tokens = std::vector<std::int32_t>;
using Bytes = std::vector<std::uint8_t>;

// Windows of at most `order` tokens with their counts.
using Windows = std::map<Tokens, std::int64_t>;

inline Windows windows_of(const std::vector<Tokens>& documents, int order) {
  Windows windows;
  for (const Tokens& document : documents) {
    for (auto begin = document.begin(); begin != document.end(); ++begin) {
      ++windows[Tokens(begin, begin + std::min<std::ptrdiff_t>(order, document.end() - begin))];
    }
  }
  return windows;
}

// Packs a window as the builder expects it (dart_jax/ngram/windows.py).
inline std::vector<std::uint64_t> pack(const Tokens& window, int order, std::uint64_t vocab_size) {
  const unsigned bits = dart::bit_length(vocab_size);
  const int per_word = std::min<int>(order, static_cast<int>(64 / bits));
  std::vector<std::uint64_t> words(static_cast<std::size_t>((order + per_word - 1) / per_word));
  for (std::size_t i = 0; i < window.size(); ++i) {
    const int place = static_cast<int>(i);
    words[i / static_cast<std::size_t>(per_word)] |=
        static_cast<std::uint64_t>(window[i] + 1)
        << (static_cast<unsigned>(per_word - 1 - place % per_word) * bits);
  }
  return words;
}

inline void add(dart::NgramBuilder* builder, const Windows& windows, int order) {
  for (const auto& [window, count] : windows) {
    const auto words = pack(window, order, builder->vocab_size());
    builder->add(words.data(), &count, 1);
  }
}

inline Bytes write_file(const std::vector<dart::NgramLevel>& levels,
                        const dart::NgramFileOptions& options) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
  if (file == nullptr) throw std::runtime_error("no temporary file");
  dart::write_ngram_file(levels, options, file.get());
  std::fseek(file.get(), 0, SEEK_END);
  Bytes bytes(static_cast<std::size_t>(std::ftell(file.get())));
  std::rewind(file.get());
  if (std::fread(bytes.data(), 1, bytes.size(), file.get()) != bytes.size()) {
    throw std::runtime_error("cannot read back");
  }
  return bytes;
}

inline Bytes file_of(const Windows& windows, int order, dart::NgramFileOptions options) {
  dart::NgramBuilder builder(order, options.vocab_size, "");
  add(&builder, windows, order);
  return write_file(builder.finish(), options);
}

inline dart::NgramFileOptions options_of(std::uint64_t vocab_size, std::uint32_t precision = 0) {
  dart::NgramFileOptions options;
  options.vocab_size = vocab_size;
  options.precision = precision;
  return options;
}

// A model together with the bytes it reads.
struct OwnedModel {
  explicit OwnedModel(Bytes file) : bytes(std::move(file)), model(bytes) {}
  OwnedModel(const std::vector<Tokens>& documents, int order, std::uint64_t vocab_size)
      : OwnedModel(file_of(windows_of(documents, order), order, options_of(vocab_size))) {}
  OwnedModel(const OwnedModel&) = delete;

  Bytes bytes;
  dart::NgramModel model;
};

// A small random number generator with the same sequence on every platform.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}
  std::uint32_t below(std::uint32_t bound) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>((state_ >> 33) % bound);
  }

 private:
  std::uint64_t state_;
};

// Documents in which small tokens are frequent, so that contexts with one follower and with many
// exist at every length.
inline std::vector<Tokens> random_documents(std::uint64_t seed, std::uint32_t vocab_size,
                                            std::size_t documents, std::size_t length) {
  Numbers numbers(seed);
  std::vector<Tokens> all(documents);
  for (Tokens& document : all) {
    for (std::size_t i = 0; i < length; ++i) {
      const std::uint32_t bound = numbers.below(4) == 0 ? vocab_size : vocab_size / 16 + 1;
      document.push_back(static_cast<std::int32_t>(numbers.below(bound)));
    }
  }
  return all;
}
